// LAYOVER_CHECK(condition): a broken promise between our own functions. Prints where and aborts; it is never used for
// input, files or peers, whose failures are absl::Status.
#ifndef LAYOVER_COMMON_CHECK_H_
#define LAYOVER_COMMON_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define LAYOVER_CHECK(condition)                                                                   \
  do {                                                                                             \
    if (!(condition)) [[unlikely]] {                                                               \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);           \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)

#endif  // LAYOVER_COMMON_CHECK_H_
