// The memory ahead of a K/V pool: what is asked for, and that it comes without a byte being changed.
#include "kernels/cpu/prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace layover {
namespace {

uint8_t* const kBase = reinterpret_cast<uint8_t*>(64 * kHugePageBytes);
constexpr size_t kHuge = kHugePageBytes;

TEST(Prefault, TheFirstPageOfAHugePageAsksForTheNext) {
  const MemoryRange pool{kBase, 3 * kHuge + 4096};
  const struct {
    size_t page, bytes;
    MemoryRange want;
  } cases[] = {
      {0, 24576, {kBase + kHuge, kHuge}},                      // starts the first
      {24576, 24576, {}},                                      // in the middle of it
      {kHuge - 4096, 24576, {kBase + 2 * kHuge, kHuge}},       // reaches over into the second
      {kHuge, 24576, {kBase + 2 * kHuge, kHuge}},              // starts the second
      {kHuge - 24576, 24576, {}},                              // ends with the first
      {2 * kHuge, 24576, {kBase + 3 * kHuge, 4096}},           // what is left of the pool
      {3 * kHuge, 4096, {}},                                   // the pool ends here
      {kHuge / 2, kHuge * 3 / 2, {kBase + 2 * kHuge, kHuge}},  // a page larger than what is left of the first
  };
  for (const auto& c : cases) EXPECT_EQ(AheadOf(pool, kBase + c.page, c.bytes), c.want) << c.page << " + " << c.bytes;
}

class Mapping {
 public:
  explicit Mapping(size_t bytes) : bytes_(bytes) {
    begin_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(begin_, bytes, MADV_NOHUGEPAGE);  // else one touch may bring all of it
  }
  ~Mapping() { munmap(begin_, bytes_); }
  uint8_t* data() const { return static_cast<uint8_t*>(begin_); }

  bool Resident(size_t bytes) const {
    std::vector<unsigned char> pages(bytes / static_cast<size_t>(getpagesize()));
    EXPECT_EQ(mincore(begin_, bytes, pages.data()), 0);
    for (const unsigned char page : pages) {
      if ((page & 1) == 0) return false;
    }
    return true;
  }

 private:
  void* begin_;
  const size_t bytes_;
};

TEST(Prefault, FetchesWithoutChangingAByte) {
  const Mapping memory(kHuge);
  memory.data()[5000] = 17;
  ASSERT_FALSE(memory.Resident(kHuge / 2));
  Prefault prefault;
  prefault.Fetch({memory.data(), kHuge / 2});
  while (!memory.Resident(kHuge / 2)) std::this_thread::yield();
  EXPECT_EQ(memory.data()[5000], 17);
}

TEST(Prefault, MemoryThatIsGoneDoesNoHarm) {
  uint8_t* gone = nullptr;
  {
    const Mapping memory(kHuge);
    gone = memory.data();
  }
  const Mapping memory(kHuge);
  Prefault prefault;
  prefault.Fetch({gone, kHuge});
  prefault.Fetch({memory.data(), kHuge / 2});
  while (!memory.Resident(kHuge / 2)) std::this_thread::yield();
}

}  // namespace
}  // namespace layover
