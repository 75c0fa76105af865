// Names of llama-server's slot files. Here such a file is a conversation, and its name never becomes part of a path.
#ifndef LAYOVER_COORDINATOR_HTTP_SLOT_FILENAME_H_
#define LAYOVER_COORDINATOR_HTTP_SLOT_FILENAME_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace layover {

// The id of the conversation that stands for the file: the name itself, with '%' and every byte that is not printable
// ASCII percent-encoded, so that two names never share an id. InvalidArgument (param "filename") for what llama-server
// refuses too (a path, "..", control characters, bad UTF-8, over 255 bytes), and for an id of over 256 characters.
absl::StatusOr<std::string> ConversationIdOfSlotFile(std::string_view filename);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_SLOT_FILENAME_H_
