# OpenBLAS, single-threaded build: our own worker team runs one sgemm per thread, and a second pool of threads, with its
# buffers, would be memory and cores that nobody planned. Debian keeps that build in a directory of its own; it is linked by
# its path (with a run path), whatever the system's alternatives say.
find_library(NW_OPENBLAS_LIBRARY NAMES openblas
    PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial NO_DEFAULT_PATH)
find_path(NW_OPENBLAS_INCLUDE NAMES cblas.h
    PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial NO_DEFAULT_PATH)
if(NOT NW_OPENBLAS_LIBRARY OR NOT NW_OPENBLAS_INCLUDE)
    message(FATAL_ERROR "The single-threaded OpenBLAS is missing: apt install libopenblas-serial-dev")
endif()
add_library(nw_openblas INTERFACE)
target_include_directories(nw_openblas SYSTEM INTERFACE ${NW_OPENBLAS_INCLUDE})
target_link_libraries(nw_openblas INTERFACE ${NW_OPENBLAS_LIBRARY})
