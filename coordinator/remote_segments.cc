#include "coordinator/remote_segments.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "common/segment_link/segment_link.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"

namespace layover {
namespace {

constexpr std::string_view kStoreIdName = "store_id";
constexpr size_t kStoreIdDigits = 32;

}  // namespace

absl::StatusOr<std::string> EnsureStoreId(const std::string& store) {
  const std::string path = JoinPath(store, kStoreIdName);
  auto text = ReadWholeFile(path, kStoreIdDigits + 1);
  if (absl::IsNotFound(text.status())) {
    std::random_device random;
    std::string id;
    while (id.size() < kStoreIdDigits) id += fmt::format("{:08x}", static_cast<uint32_t>(random()));
    RETURN_IF_ERROR(WriteFileDurably(store, kStoreIdName, id + "\n"));
    return id;
  }
  RETURN_IF_ERROR(text.status());
  if (!text->empty() && text->back() == '\n') text->pop_back();
  if (text->size() != kStoreIdDigits || text->find_first_not_of("0123456789abcdef") != std::string::npos) {
    return DataLoss("{} is not {} hexadecimal digits", path, kStoreIdDigits);
  }
  return *std::move(text);
}

bool HasRemoteStages(const Topology& topology) {
  return std::any_of(topology.stages.begin(), topology.stages.end(),
                     [](const StageSettings& stage) { return !stage.host.empty(); });
}

// Its links are made when they are needed; one thread uses it.
class RemoteSegments::Reader {
 public:
  explicit Reader(std::vector<wire::FileEnd> ends) : ends_(std::move(ends)) {}

  absl::StatusOr<std::unique_ptr<BlockReader>> Open(const std::string& host, const std::string& folder,
                                                    const std::string& file) {
    std::unique_ptr<SegmentLink>& link = links_[host];
    if (link == nullptr) {
      const auto end = std::find_if(ends_.begin(), ends_.end(), [&](const wire::FileEnd& e) { return e.host == host; });
      if (end == ends_.end())
        return FailedPrecondition("{} is kept by {}, where no stage of this topology runs", file, host);
      ASSIGN_OR_RETURN(auto socket, OpenSegmentEnd(context_, *end));
      link = std::make_unique<SegmentLink>(std::move(socket), host);
    }
    return link->Open(folder, file);
  }

 private:
  const std::vector<wire::FileEnd> ends_;
  wire::SocketContext context_;
  std::map<std::string, std::unique_ptr<SegmentLink>> links_;  // by host
};

RemoteSegments::RemoteSegments(const Topology& topology, StageGroup* stages, StoreThread* store_thread,
                               SegmentNames* names)
    : topology_(topology),
      stages_(stages),
      store_thread_(store_thread),
      names_(names),
      any_(topology.store.has_value() && HasRemoteStages(topology)),
      reader_(std::make_shared<Reader>(stages->SegmentEnds())) {}

absl::Status RemoteSegments::CheckReach(const ManifestSegment& segment) const {
  const bool reached = std::any_of(topology_.stages.begin(), topology_.stages.end(),
                                   [&](const StageSettings& stage) { return stage.host == segment.host; });
  if (reached) return absl::OkStatus();
  const std::string keeper = segment.host.empty() ? "the coordinator's machine" : segment.host;
  return WithPart(FailedPrecondition("{} is kept by {}, where no stage of this topology runs", segment.Path(), keeper),
                  {.file = segment.file, .stage = segment.stage});
}

RemoteOpener RemoteSegments::Opener() const {
  return [reader = reader_](const std::string& host, const std::string& folder, const std::string& file) {
    return reader->Open(host, folder, file);
  };
}

void RemoteSegments::Tell(const std::string& host, const wire::ToStage& message) {
  if (!stages_->up()) return;  // the next sweep takes it
  for (const StageStatus& stage : stages_->Status()) {
    if (HostOf(stage.stage) == host) return stages_->SendTo(stage.stage, message);
  }
}

void RemoteSegments::Remove(int stage, const std::string& path) {
  const std::string folder(DirName(path)), file(BaseName(path));
  if (HostOf(stage).empty()) {
    store_thread_->Post([folder, file] { (void)RemoveDurably(folder, file); });
  } else {
    Tell(HostOf(stage), wire::RemoveSegments{{JoinPath(BaseName(folder), file)}});
  }
}

// Behind all commits that began before the stages came up, so that nothing a manifest is about to name goes; what is
// written from now on is a new worker's own, which its sweep leaves alone.
void RemoteSegments::Sweep() {
  if (!any_) return;
  store_thread_->Do([this] { return names_->MayRemove() ? std::optional(remote_names_.Named()) : std::nullopt; },
                    [this](std::optional<RemoteNames::ByHost> named) {
                      if (!named.has_value()) return;
                      for (const StageSettings& stage : topology_.stages) {
                        if (!stage.host.empty()) Tell(stage.host, wire::SweepSegments{std::move((*named)[stage.host])});
                      }
                    });
}

void RemoteSegments::RemoveDropped() {
  if (!any_) return;
  store_thread_->Do([this] { return names_->MayRemove() ? remote_names_.TakeDropped() : RemoteNames::ByHost(); },
                    [this](const RemoteNames::ByHost& dropped) {
                      for (const auto& [host, files] : dropped) Tell(host, wire::RemoveSegments{files});
                    });
}

}  // namespace layover
