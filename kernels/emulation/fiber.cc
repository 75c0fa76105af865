// Compiled without ThreadSanitizer even where the rest has it: its switch hook must not run in instrumented code.
#include "kernels/emulation/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "common/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(LAYOVER_EMULATION_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
#endif

#ifndef LAYOVER_FIBER_UCONTEXT
// void layover_fiber_switch(void** save_stack_pointer, void* new_stack_pointer): keeps what the ABI lets a callee not
// change, and returns on the other stack.
asm(R"(
.text
.p2align 4
.hidden layover_fiber_switch
.globl layover_fiber_switch
.type layover_fiber_switch, @function
layover_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size layover_fiber_switch, .-layover_fiber_switch
)");
extern "C" void layover_fiber_switch(void** save_stack_pointer, void* new_stack_pointer);
#endif

namespace layover::emulation {

Fiber::Fiber(size_t stack_bytes) : stack_bytes_(stack_bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapping_bytes_ = stack_bytes + page;
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LAYOVER_CHECK(mapping_ != MAP_FAILED);
  LAYOVER_CHECK(mprotect(mapping_, page, PROT_NONE) == 0);
  stack_bottom_ = static_cast<char*>(mapping_) + page;
#if defined(LAYOVER_EMULATION_TSAN)
  race_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(LAYOVER_EMULATION_TSAN)
  if (mapping_ != nullptr) __tsan_destroy_fiber(race_fiber_);
#endif
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

void Fiber::AdoptCurrentStack() {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  LAYOVER_CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
  LAYOVER_CHECK(pthread_attr_getstack(&attributes, &stack_bottom_, &stack_bytes_) == 0);
  pthread_attr_destroy(&attributes);
#endif
#if defined(LAYOVER_EMULATION_TSAN)
  race_fiber_ = __tsan_get_current_fiber();
#endif
}

void Fiber::Start(void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_bottom_, stack_bytes_);  // what the stack's last owner left
  fake_stack_ = nullptr;
#endif
#ifdef LAYOVER_FIBER_UCONTEXT
  LAYOVER_CHECK(getcontext(&context_) == 0);
  context_.uc_stack.ss_sp = stack_bottom_;
  context_.uc_stack.ss_size = stack_bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#else
  // Six registers, the address to return to, and one word so that entry finds its stack aligned as after a call.
  auto* top = reinterpret_cast<uintptr_t*>(static_cast<char*>(stack_bottom_) + stack_bytes_);
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#endif
}

void Fiber::SwitchFrom(Fiber* from, bool for_good) {
#if defined(LAYOVER_EMULATION_TSAN)
  __tsan_switch_to_fiber(race_fiber_, 1);  // 1: switching orders nothing
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from->fake_stack_, stack_bottom_, stack_bytes_);
#endif
#ifdef LAYOVER_FIBER_UCONTEXT
  swapcontext(&from->context_, &context_);
#else
  layover_fiber_switch(&from->stack_pointer_, stack_pointer_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace layover::emulation
