# The CUDA back end, twice from the same sources: by the host compiler under the emulation (always; the plug-in
# liblayover_emu.so and the tests), and by nvcc (LAYOVER_CUDA=ON; the plug-in liblayover_cuda.so).

option(LAYOVER_CUDA "also build liblayover_cuda.so with nvcc" OFF)
set(LAYOVER_CUDA_ARCHITECTURES "80;86;89;90;100;120" CACHE STRING "what nvcc compiles the kernels for")
set(LAYOVER_NVCC "" CACHE FILEPATH "nvcc; looked for in CUDACXX, PATH and /usr/local/cuda if empty")

# The engine's own accesses are no kernel's: ThreadSanitizer must not see them.
file(GLOB emulation_sources CONFIGURE_DEPENDS kernels/emulation/*.cc)
add_library(layover_emulation STATIC ${emulation_sources})
target_link_libraries(layover_emulation PUBLIC layover_options layover_base)
if(LAYOVER_SANITIZE STREQUAL "thread")
  set_source_files_properties(kernels/emulation/engine.cc kernels/emulation/fiber.cc PROPERTIES
    COMPILE_OPTIONS "-fno-sanitize=thread;-DLAYOVER_EMULATION_TSAN=1")
endif()

file(GLOB gpu_host_sources CONFIGURE_DEPENDS kernels/cuda/*.cc)
list(FILTER gpu_host_sources EXCLUDE REGEX "runtime_cuda\\.cc$")
file(GLOB gpu_kernels CONFIGURE_DEPENDS kernels/cuda/*.cu)
if(gpu_kernels)
  set_source_files_properties(${gpu_kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
  add_library(layover_gpu_emulated STATIC ${gpu_host_sources} ${gpu_kernels})
  target_link_libraries(layover_gpu_emulated PUBLIC layover_emulation layover_kernels)
  add_library(layover_emu MODULE kernels/cuda/plugin_entry.cc)
  target_link_libraries(layover_emu PRIVATE layover_gpu_emulated)
  # Nothing but the entry is seen from outside; what the program has too stays the plug-in's own.
  target_link_options(layover_emu PRIVATE -Wl,--exclude-libs,ALL)
  set_target_properties(layover_emu PROPERTIES CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
