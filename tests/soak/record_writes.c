/* Calls a function before and after each system call of this process that changes a file, or syncs one.

   Loaded by LD_PRELOAD, so that the writes of libraries (SQLite, HDF5) are seen as well. Writes through stdio call
   write inside of the C library and are seen at the next call, which is that of fsync at the latest. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

static void (*hook)(const char* name, int file);
static __thread int inside;

void set_hook(void (*function)(const char* name, int file)) { hook = function; }

static void note(const char* name, int file) {
  if (!hook || inside) return;
  const int error = errno;
  inside = 1;
  hook(name, file);
  inside = 0;
  errno = error;
}

#define RECORDED(type, name, file, parameters, arguments)                       \
  type name parameters {                                                        \
    static type(*real) parameters;                                              \
    if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name);              \
    note("", file);                                                             \
    const type result = real arguments;                                         \
    note(#name, file);                                                          \
    return result;                                                              \
  }

RECORDED(ssize_t, write, file, (int file, const void* data, size_t n), (file, data, n))
RECORDED(ssize_t, writev, file, (int file, const struct iovec* parts, int n), (file, parts, n))
RECORDED(ssize_t, pwrite, file, (int file, const void* data, size_t n, off_t at), (file, data, n, at))
RECORDED(ssize_t, pwrite64, file, (int file, const void* data, size_t n, off64_t at), (file, data, n, at))
RECORDED(int, ftruncate, file, (int file, off_t size), (file, size))
RECORDED(int, ftruncate64, file, (int file, off64_t size), (file, size))
RECORDED(int, fsync, file, (int file), (file))
RECORDED(int, fdatasync, file, (int file), (file))
RECORDED(int, rename, -1, (const char* from, const char* to), (from, to))
RECORDED(int, renameat, -1, (int a, const char* from, int b, const char* to), (a, from, b, to))
RECORDED(int, link, -1, (const char* from, const char* to), (from, to))
RECORDED(int, linkat, -1, (int a, const char* from, int b, const char* to, int flags), (a, from, b, to, flags))
RECORDED(int, unlink, -1, (const char* path), (path))
RECORDED(int, unlinkat, -1, (int folder, const char* path, int flags), (folder, path, flags))
RECORDED(int, rmdir, -1, (const char* path), (path))
