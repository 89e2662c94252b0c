# OpenBLAS, the build with its own threads. Our worker team runs one sgemm per thread and wants none of those threads (model/forward.c sets
# them to one), but Debian's single-threaded build has no locks around its buffers: two threads that call it at once now and then get
# the same buffer, and wrong products (seen in 0.4 % of small ones). Debian keeps each build in a directory of its own; this one is
# linked by its path (with a run path), whatever the system's alternatives say.
find_library(NW_BLAS_LIBRARY NAMES openblas
    PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread NO_DEFAULT_PATH)
find_path(NW_BLAS_INCLUDE NAMES cblas.h
    PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread NO_DEFAULT_PATH)
if(NOT NW_BLAS_LIBRARY OR NOT NW_BLAS_INCLUDE)
    message(FATAL_ERROR "OpenBLAS is missing: apt install libopenblas-pthread-dev")
endif()
add_library(nw_openblas INTERFACE)
target_include_directories(nw_openblas SYSTEM INTERFACE ${NW_BLAS_INCLUDE})
target_link_libraries(nw_openblas INTERFACE ${NW_BLAS_LIBRARY})
