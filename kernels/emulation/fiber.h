// A stack that can be left and returned to: one CUDA thread of the block that runs. Switching is ten instructions on
// x86-64; elsewhere ucontext, a hundred times slower. Sanitizers are told about every switch.
#ifndef LAYOVER_KERNELS_EMULATION_FIBER_H_
#define LAYOVER_KERNELS_EMULATION_FIBER_H_

#include <cstddef>

#if !defined(__x86_64__) || defined(LAYOVER_EMULATION_UCONTEXT)
#define LAYOVER_FIBER_UCONTEXT 1
#include <ucontext.h>
#endif

namespace layover::emulation {

class Fiber {
 public:
  // The stack that runs already.
  Fiber() = default;
  void AdoptCurrentStack();
  // A stack with a guard page below it. CHECKs that there is memory.
  explicit Fiber(size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next switch to this fiber calls entry(), which must never return.
  void Start(void (*entry)());
  // Leaves `from`, which is running, for this one. Returns when somebody switches back to `from`; not at all if
  // `for_good`.
  void SwitchFrom(Fiber* from, bool for_good = false);
  // First thing on a fresh stack, for the sanitizers.
  static void Arrived();

 private:
#ifdef LAYOVER_FIBER_UCONTEXT
  ucontext_t context_ = {};
#endif
  void* stack_pointer_ = nullptr;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  void* stack_bottom_ = nullptr;  // lowest address
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* race_fiber_ = nullptr;  // ThreadSanitizer's
};

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_FIBER_H_
