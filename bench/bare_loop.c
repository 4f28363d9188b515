/* The barest yardstick: WIDTH processes that each start copies of a program, one after the other, by posix_spawn and waitpid and nothing
 * else, COUNT in all. Prints jobs per second, and CPU seconds: of the loops themselves, and of what they started. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(int who)
{
    struct rusage used;
    getrusage(who, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void loop(int count, char **words, int result)
{
    for (int i = 0; i < count; i++) {
        pid_t pid;
        if (posix_spawn(&pid, words[0], NULL, NULL, words, environ) != 0 || waitpid(pid, NULL, 0) < 0)
            _exit(1);
    }
    double used[2] = { cpu(RUSAGE_SELF), cpu(RUSAGE_CHILDREN) };
    _exit(write(result, used, sizeof used) != sizeof used);
}

int main(int argc, char **argv)
{
    int result[2], status;
    if (argc < 4 || pipe(result) < 0) {
        fprintf(stderr, "usage: bare_loop COUNT WIDTH PROGRAM [ARG...]\n");
        return 2;
    }
    int count = atoi(argv[1]), width = atoi(argv[2]);
    double begin = now(), own = 0, children = 0, used[2];
    for (int k = 0; k < width; k++)
        if (fork() == 0)
            loop(count / width + (k < count % width), argv + 3, result[1]);
    for (int k = 0; k < width; k++)
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "bare_loop: %s could not be started\n", argv[3]);
            return 1;
        }
    double rate = count / (now() - begin);
    for (int k = 0; k < width && read(result[0], used, sizeof used) == sizeof used; k++) {
        own += used[0];
        children += used[1];
    }
    printf("%.1f %.6f %.6f\n", rate, own, children);
    return 0;
}
