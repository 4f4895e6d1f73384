/* Loads the plugin as NCCL does, in both versions of its interface, and prints its answers. Then, with a second argument, has NCCL
 * itself load it: `loader PLUGIN [LIBNCCL]`. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
  const char *name;
  int (*init)(uint8_t, uint8_t, uint8_t, const char *);
  int (*finalize)(void);
  const char *(*getEnv)(const char *);
} env_v1;

typedef struct {
  const char *name;
  int (*init)(uint8_t, uint8_t, uint8_t, const char *, logger_t);
  int (*finalize)(void);
  const char *(*getEnv)(const char *);
} env_v2;

static const char *const names[] = {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE",
                                    "NCCL_IB_ADDR_FAMILY", "NCCL_DEBUG", "NCCL_ALGO", "", "PATH_TO_NOWHERE"};

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list list;
  (void)file, (void)line;
  printf("log %d %lu ", level, flags);
  va_start(list, format);
  vprintf(format, list);
  va_end(list);
  printf("\n");
}

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) fprintf(stderr, "no %s: %s\n", name, dlerror()), exit(1);
  return found;
}

static void ask(int version, const char *(*getEnv)(const char *)) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getEnv(names[i]);
    if (value) printf("v%d %s=%s\n", version, names[i], value);
    if (value != getEnv(names[i])) printf("v%d %s has moved\n", version, names[i]);
  }
  if (getEnv(NULL)) printf("v%d answers to nothing\n", version);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  for (int version = 1; version <= 2; version++) {
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    env_v1 *v1 = symbol(library, "ncclEnvPlugin_v1");
    env_v2 *v2 = symbol(library, "ncclEnvPlugin_v2");
    printf("v%d is %s\n", version, version == 1 ? v1->name : v2->name);
    int failed = version == 1 ? v1->init(2, 28, 3, "") : v2->init(2, 30, 7, "", log_line);
    if (failed) printf("v%d init %d\n", version, failed);
    ask(version, version == 1 ? v1->getEnv : v2->getEnv);
    if (v1->finalize()) printf("v%d finalize fails\n", version);
    if (v1->getEnv("NCCL_SOCKET_IFNAME") && !getenv("NCCL_SOCKET_IFNAME")) printf("v%d still answers\n", version);
    dlclose(library);
  }
  if (argc > 2) {
    void *nccl = dlopen(argv[2], RTLD_NOW);
    if (!nccl) return fprintf(stderr, "%s\n", dlerror()), 1;
    char id[128];
    int (*get_unique_id)(void *) = (int (*)(void *))symbol(nccl, "ncclGetUniqueId");
    printf("ncclGetUniqueId %d\n", get_unique_id(id));
  }
  return 0;
}
