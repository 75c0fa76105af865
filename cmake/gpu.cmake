# The CUDA back end, twice from the same sources: by the host compiler under the emulation (always; the plug-in
# liblayover_emu.so and the tests), and by nvcc (LAYOVER_CUDA=ON; the plug-in liblayover_cuda.so).

option(LAYOVER_CUDA "also build liblayover_cuda.so with nvcc" OFF)
set(LAYOVER_CUDA_ARCHITECTURES "80;86;89;90;100;120" CACHE STRING "what nvcc compiles the kernels for")
set(LAYOVER_NVCC "" CACHE FILEPATH "nvcc; if empty: CUDACXX, PATH, /usr/local/cuda")

# The engine's own accesses are no kernel's: ThreadSanitizer must not see them.
file(GLOB emulation_sources CONFIGURE_DEPENDS kernels/emulation/*.cc)
add_library(layover_emulation STATIC ${emulation_sources})
target_link_libraries(layover_emulation PUBLIC layover_options layover_base)
if(LAYOVER_SANITIZE STREQUAL "thread")
  set_source_files_properties(kernels/emulation/engine.cc kernels/emulation/fiber.cc
    kernels/emulation/shared_memory.cc PROPERTIES
    COMPILE_OPTIONS "-fno-sanitize=thread;-DLAYOVER_EMULATION_TSAN=1")
endif()

file(GLOB gpu_host_sources CONFIGURE_DEPENDS kernels/cuda/*.cc)
list(FILTER gpu_host_sources EXCLUDE REGEX "plugin_entry\\.cc$|runtime_cuda\\.cc$")
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

if(LAYOVER_CUDA)
  if(LAYOVER_NVCC)
    set(nvcc ${LAYOVER_NVCC})
  elseif(DEFINED ENV{CUDACXX})
    set(nvcc $ENV{CUDACXX})
  else()
    find_program(nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
  endif()
  if(NOT nvcc)
    message(FATAL_ERROR "LAYOVER_CUDA needs nvcc: install the CUDA toolkit, or run ./check --cuda, which gets it from PyPI")
  endif()
  get_filename_component(cuda_root ${nvcc} REALPATH)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
  find_path(cuda_include cuda_runtime.h HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include REQUIRED)
  find_library(cuda_runtime cudart_static HINTS ${cuda_root}/lib ${cuda_root}/lib64 ${cuda_root}/targets/x86_64-linux/lib REQUIRED)
  set(gencode)
  foreach(arch IN LISTS LAYOVER_CUDA_ARCHITECTURES)
    list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET LAYOVER_CUDA_ARCHITECTURES -1 newest)  # as PTX for cards to come
  list(APPEND gencode -gencode arch=compute_${newest},code=compute_${newest})

  # layover_nvcc(OBJECTS KERNEL...): per kernel file an object and ptxas's report, which tests/gpu/check_ptxas.py judges.
  # Nothing is contracted and nothing is approximate: kernels/README.md says what rounds where.
  function(layover_nvcc objects)
    set(made)
    foreach(kernel IN LISTS ARGN)
      get_filename_component(leaf ${kernel} NAME_WE)
      set(object ${CMAKE_BINARY_DIR}/cuda/${leaf}.o)
      add_custom_command(OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
        COMMAND bash ${CMAKE_SOURCE_DIR}/scripts/nvcc_with_report.sh ${CMAKE_BINARY_DIR}/cuda/${leaf}.ptxas.txt
                ${CMAKE_CXX_COMPILER_LAUNCHER} ${nvcc} -std=c++20 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -I${CMAKE_SOURCE_DIR}
                -Xcompiler=-fPIC,-fvisibility=hidden -Xptxas=-v ${gencode}
                -MD -MF ${CMAKE_BINARY_DIR}/cuda/${leaf}.d -MT ${object} -c ${kernel} -o ${object}
        DEPENDS ${kernel} ${CMAKE_SOURCE_DIR}/scripts/nvcc_with_report.sh
        DEPFILE ${CMAKE_BINARY_DIR}/cuda/${leaf}.d VERBATIM COMMENT "nvcc ${leaf}.cu")
      list(APPEND made ${object})
    endforeach()
    set_source_files_properties(${made} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    set(${objects} ${made} PARENT_SCOPE)
  endfunction()
  layover_nvcc(cuda_objects ${gpu_kernels})

  # Everything of the back end but the entry, for the plug-in and for the tests on a card.
  add_library(layover_gpu_native STATIC ${gpu_host_sources} kernels/cuda/runtime_cuda.cc ${cuda_objects})
  target_include_directories(layover_gpu_native SYSTEM PRIVATE ${cuda_include})
  target_link_libraries(layover_gpu_native PUBLIC layover_kernels ${cuda_runtime} Threads::Threads dl rt)
  add_library(layover_cuda MODULE kernels/cuda/plugin_entry.cc)
  target_link_libraries(layover_cuda PRIVATE layover_gpu_native)
  target_link_options(layover_cuda PRIVATE -Wl,--exclude-libs,ALL)
  set_target_properties(layover_cuda PROPERTIES CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
