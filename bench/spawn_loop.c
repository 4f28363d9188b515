/* The yardstick: start COUNT copies of a program, WIDTH at a time, by posix_spawn and wait, and print jobs per second and its own CPU seconds. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: spawn_loop COUNT WIDTH PROGRAM [ARG...]\n");
        return 2;
    }
    int count = atoi(argv[1]), width = atoi(argv[2]), started = 0, ended = 0;
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    double begin = now();
    while (ended < count) {
        while (started < count && started - ended < width) {
            pid_t pid;
            if (posix_spawn(&pid, argv[3], NULL, &attributes, argv + 3, environ) != 0) {
                perror("posix_spawn");
                return 1;
            }
            started++;
        }
        if (waitpid(-1, NULL, 0) < 0) {
            perror("waitpid");
            return 1;
        }
        ended++;
    }
    double rate = count / (now() - begin);
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    printf("%.1f %.6f\n", rate,
           own.ru_utime.tv_sec + own.ru_stime.tv_sec + (own.ru_utime.tv_usec + own.ru_stime.tv_usec) * 1e-6);
    return 0;
}
