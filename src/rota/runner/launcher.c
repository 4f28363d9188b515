/*
 * The optional launcher: starts and reaps jobs for a runner, which drives it over the socket that is its standard input.
 *
 * It decides nothing. The runner says what to start, in which slot and how many of a slot may run at once; the launcher keeps
 * that many running, so that the next job starts at once when one ends, and tells the runner in batches. A lane is a pair of scratch
 * files (see segments.py); a lane that a job wrote to is not used again until the runner has emptied it.
 *
 * A job is started by a clone that shares our memory until it executes its program, and nobody waits for that: vfork would hold us
 * up meanwhile, while other slots stand empty. Whether it did is seen later, and told then.
 *
 * There are as many starters as cores: threads that each start a job, wait for it and start the next one, so that a processor goes from
 * one job to the next without another having to be woken. The main thread speaks with the runner, and starts what is left when all
 * starters wait. One lock is held by whoever does anything but wait, change directory, open files or clone.
 *
 * What it has started, and the records that it has yet to send, are in memory that it shares with the runner (struct book): should it
 * be killed, the runner knows all the same.
 *
 * A message: u32 length of what follows, one byte of kind, the body. Numbers are native: both ends are on one machine.
 *   E  u32 env, u32 count, strings                a common part of an environment
 *   L  u32 lane, out path, err path               open a lane (again)
 *   C  u32 lane                                   the lane is empty
 *   X  u32 lane                                   close the lane
 *   N  u32 slot, u32 limit                        how many of a slot may run
 *   S  u32 id, u32 slot, u32 env, f64 start_by, u32 argc, u32 envc, u32 umask, strings: cwd, path, stdin, stdout, stderr, argv, env
 *   R                                             give back what has not started
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, STARTED, ENDED, FAILED, RETURNED };
enum { STAGE_CWD = 1, STAGE_IN, STAGE_OUT, STAGE_ERR, STAGE_EXEC };
enum { VERSION = 1, SURVIVORS = 1, LATE = 2, WROTE = 4 };

struct record {
    uint32_t kind, id;
    int32_t pid, status, problem;
    uint32_t stage, lane, flags;
    uint64_t utime_us, stime_us, maxrss_kb, out_size, err_size;
    double began, wall;
};

/* A record whose kind is 0 is not finished yet. A job is started once its id is in its place of `started`. */
enum { MOST_RECORDS = 1024, MOST_STARTED = 4096 };
struct book { uint32_t count, unused; uint32_t started[MOST_STARTED]; struct record records[MOST_RECORDS]; };

struct request { /* a job that waits */
    struct request *next;
    uint32_t id, env, argc, envc, umask;
    double start_by;
    char *strings;
};

struct slot { uint32_t limit, running; struct request *first, **last; };
struct lane { int out, err; char busy, open; };
struct env { uint32_t count; char **words, *strings; };
/* What a child uses of our memory until it has become another program. */
struct nest {
    struct nest *next;
    const char *path;
    char **argv, **env, **script, *strings, *stack;
    int fds[3];
    volatile int problem;
    volatile pid_t alive; /* the kernel clears it when the child has let go of our memory */
};
struct child {
    pid_t pid;
    uint32_t id, slot, lane;
    double began;
    size_t record, flushes;
    struct nest *nest;
    uint64_t arrived; /* before it started: what has come since may be its own */
    char told, own;
};

static struct slot **slots;
static struct lane *lanes;
static struct env *envs;
static struct child *children;
static size_t slot_count, lane_count, env_count, child_count, child_room;
static struct book *book;
static struct record *records;
static int null_fd, children_fd = -1, bell;
static pid_t *strays, *strays_now;      /* what outlived a job, or came while it runs, and has come to us */
static size_t stray_count, stray_room, stray_now_room;
static uint64_t arrived;                /* how many of them have ever been seen */
static size_t waiting, flushes, unborn; /* requests that wait; how often records were sent; children in our memory */
static size_t own_count, idle;          /* children of the main thread's own; starters with nothing to do */
static double oldest_record, last_start;
static struct nest *empty_nests;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static int sleeps; /* the main thread waits, and for longer than somebody may have to wait for it */
/* Each starter has a directory and a umask of its own. */
static __thread uint32_t last_umask = (uint32_t)-1;
static __thread int moved;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void *room(void *old, size_t *have, size_t want, size_t size)
{
    if (want <= *have)
        return old;
    size_t more = want + want / 2 + 8;
    char *new = realloc(old, more * size);
    if (!new)
        die("launcher: memory");
    memset(new + *have * size, 0, (more - *have) * size);
    *have = more;
    return new;
}

static double seconds(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void flush(void)
{
    const char *at = (const char *)records;
    size_t left = book->count * sizeof *records;
    while (left) {
        ssize_t sent = send(0, at, left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            exit(0); /* the runner is gone; its jobs go on, as they do without a launcher */
        at += sent;
        left -= sent;
    }
    book->count = 0;
    flushes++;
}

/* A new record; `finish` it before anything else can be sent. */
static struct record *tell(uint32_t id)
{
    if (book->count == MOST_RECORDS)
        flush();
    struct record *r = &records[book->count];
    memset(r, 0, sizeof *r);
    r->id = id;
    r->wall = seconds(CLOCK_REALTIME);
    if (!book->count++)
        oldest_record = seconds(CLOCK_MONOTONIC);
    return r;
}

/* All of it is there from now on, whenever we are killed. */
static void finish(struct record *r, uint32_t kind)
{
    __atomic_store_n(&r->kind, kind, __ATOMIC_RELEASE);
}

#define PATIENCE_S 0.02

/* Milliseconds until the records must go: none while there is enough to start, for then nobody waits for them. */
static int patience(void)
{
    if (!book->count)
        return -1;
    if (waiting < 2 * child_count + 2 || book->count >= MOST_RECORDS / 4)
        return 0;
    double left = oldest_record + PATIENCE_S - seconds(CLOCK_MONOTONIC);
    return left <= 0 ? 0 : (int)(left * 1000) + 1;
}

static char *skip(char *s, uint32_t count)
{
    while (count--)
        s += strlen(s) + 1;
    return s;
}

static int open_plain(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (fd >= 0)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

/* A system call that leaves errno alone: a child has ours while it shares our memory. Elsewhere we wait for it. */
#if defined(__x86_64__)
enum { SHARED = CLONE_VM };
static inline long kernel(long number, long a, long b, long c, long d)
{
    register long fourth __asm__("r10") = d;
    long got;
    __asm__ volatile("syscall" : "=a"(got) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return got;
}
#elif defined(__aarch64__)
enum { SHARED = CLONE_VM };
static inline long kernel(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#else
enum { SHARED = CLONE_VM | CLONE_VFORK };
static inline long kernel(long number, long a, long b, long c, long d)
{
    long got = syscall(number, a, b, c, d);
    return got < 0 ? -errno : got;
}
#endif

/* In the child: only system calls, on a stack of its own. */
static int become(void *given)
{
    struct nest *n = given;
    const uint64_t none = 0;
    long got = 0;
    kernel(SYS_setsid, 0, 0, 0, 0);
    for (int i = 0; i < 3 && got >= 0; i++)
        got = kernel(SYS_dup3, n->fds[i], i, 0, 0);
    if (got >= 0) {
        kernel(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
        got = kernel(SYS_execve, (long)n->path, (long)n->argv, (long)n->env, 0);
        if (got == -ENOEXEC) {
            kernel(SYS_execve, (long)"/bin/sh", (long)n->script, (long)n->env, 0);
            got = -ENOEXEC;
        }
    }
    n->problem = (int)-got;
    kernel(SYS_exit_group, 127, 0, 0, 0);
    return 127;
}

enum { STACK = 1 << 16, LONG_S = 1 };

static struct nest *take_nest(void)
{
    struct nest *n = empty_nests;
    if (n) {
        empty_nests = n->next;
        return n;
    }
    n = calloc(1, sizeof *n);
    if (!n || !(n->stack = malloc(STACK)))
        die("launcher: memory");
    return n;
}

static void leave_nest(struct nest *n)
{
    free(n->argv);
    free(n->strings);
    n->next = empty_nests;
    empty_nests = n;
}

/* Returns the pid, or minus an errno. */
static pid_t spawn(struct nest *n)
{
    n->problem = 0;
    n->alive = 1;
    char *top = n->stack + STACK - (uintptr_t)n->stack % 16;
    pid_t pid = clone(become, top, SHARED | CLONE_CHILD_CLEARTID | SIGCHLD, n, NULL, NULL, (pid_t *)&n->alive);
    return pid < 0 ? -errno : pid;
}

static void fail(uint32_t id, uint32_t stage, int problem)
{
    struct record *r = tell(id);
    r->stage = stage;
    r->problem = problem;
    finish(r, FAILED);
}

/* Lay out what a job is started with. */
static struct nest *prepare(struct request *q, char *path, char *word)
{
    struct nest *n = take_nest();
    struct env *base = q->env < env_count ? &envs[q->env] : NULL;
    uint32_t common = base ? base->count : 0;
    char **argv = malloc((2 * (size_t)q->argc + common + q->envc + 8) * sizeof *argv);
    if (!argv)
        die("launcher: memory");
    char **script = argv + q->argc + 1, **env = script + q->argc + 3;
    for (uint32_t i = 0; i < q->argc; i++, word = skip(word, 1))
        argv[i] = word;
    argv[q->argc] = NULL;
    script[0] = "sh";
    script[1] = path;
    for (uint32_t i = 1; i <= q->argc; i++)
        script[i + 1] = argv[i];
    if (common)
        memcpy(env, base->words, common * sizeof *env);
    for (uint32_t i = 0; i < q->envc; i++, word = skip(word, 1))
        env[common + i] = word;
    env[common + q->envc] = NULL;
    n->path = path;
    n->argv = argv;
    n->script = script;
    n->env = env;
    n->strings = q->strings;
    q->strings = NULL; /* the child needs them for a while */
    return n;
}

/* Start one job in a lane, for which it has a place already; its pid, or 0. A starter does not hold the lock meanwhile; the main thread
 * does, or its child would be taken for a stray as long as nobody knows it. */
static pid_t start(struct request *q, uint32_t slot, uint32_t lane, int own)
{
    char *cwd = q->strings, *path = skip(cwd, 1), *in = skip(path, 1), *out = skip(in, 1), *err = skip(out, 1);
    int fds[3] = { null_fd, lanes[lane].out, lanes[lane].err }, opened[3] = { -1, -1, -1 };
    const int append = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;
    uint32_t stage = 0;
    pid_t pid = 0;
    struct nest *n = prepare(q, path, skip(err, 1));
    const uint64_t before = arrived;

    if (!own)
        pthread_mutex_unlock(&lock);
    if (q->umask != last_umask)
        umask(last_umask = q->umask);
    if (chdir(cwd) < 0)
        stage = STAGE_CWD;
    else if (*in && (fds[0] = opened[0] = open_plain(in, O_RDONLY)) < 0)
        stage = STAGE_IN;
    else if (*out && (fds[1] = opened[1] = open_plain(out, append)) < 0)
        stage = STAGE_OUT;
    else if (*err && strcmp(out, err) == 0)
        fds[2] = fds[1];
    else if (*err && (fds[2] = opened[2] = open_plain(err, append)) < 0)
        stage = STAGE_ERR;
    int problem = stage ? errno : 0;
    double began = seconds(CLOCK_REALTIME);
    moved = 1;
    if (!stage) {
        memcpy(n->fds, fds, sizeof fds);
        __atomic_store_n(&book->started[q->id % MOST_STARTED], q->id, __ATOMIC_RELEASE);
        if ((pid = spawn(n)) < 0) {
            stage = STAGE_EXEC;
            problem = -pid;
            pid = 0;
        }
    }
    for (int i = 0; i < 3; i++)
        if (opened[i] >= 0)
            close(opened[i]);
    if (!own)
        pthread_mutex_lock(&lock);
    if (stage) {
        fail(q->id, stage, problem);
        leave_nest(n);
        lanes[lane].busy = 0;
        slots[slot]->running--;
        return 0;
    }
    children = room(children, &child_room, child_count + 1, sizeof *children);
    children[child_count++] = (struct child){ pid, q->id, slot, lane, began, 0, (size_t)-1, n, before, 0, (char)own };
    own_count += own;
    unborn++;
    last_start = seconds(CLOCK_MONOTONIC);
    return pid;
}

/* The child has become its program, or has ended: what it had of ours is free. */
static void born(struct child *c)
{
    leave_nest(c->nest);
    c->nest = NULL;
    unborn--;
}

/* Tell of the children that have become their programs, and of those that take long to: they have a pid, and can be ended by it. */
static void tell_births(void)
{
    double now = seconds(CLOCK_REALTIME);
    for (size_t i = 0; unborn && i < child_count; i++) {
        struct child *c = &children[i];
        if (!c->nest || c->nest->problem)
            continue; /* one with a problem is about to be reaped */
        if (!c->nest->alive)
            born(c);
        else if (now < c->began + LONG_S)
            continue;
        if (c->told)
            continue;
        c->told = 1;
        struct record *r = tell(c->id);
        r->pid = c->pid;
        r->lane = c->lane;
        r->began = c->began;
        finish(r, STARTED);
        c->record = r - records;
        c->flushes = flushes;
    }
}

static void give_back(struct request *q, uint32_t flags)
{
    struct record *r = tell(q->id);
    r->flags = flags;
    finish(r, RETURNED);
    free(q->strings);
    free(q);
}

/* How many jobs may start now, as far as their slots go. */
static size_t startable(void)
{
    size_t count = 0;
    for (size_t i = 0; waiting && i < slot_count; i++) {
        struct slot *s = slots[i];
        struct request *q = s ? s->first : NULL;
        for (uint32_t free = s && s->limit > s->running ? s->limit - s->running : 0; q && free; q = q->next, free--)
            count++;
    }
    return count;
}

/* The next job that may start, with a place in its slot and a lane: slots in order, each first come first served. */
static struct request *next_request(uint32_t *slot, uint32_t *lane)
{
    for (size_t i = 0; waiting && i < slot_count; i++) {
        struct slot *s = slots[i];
        while (s && s->first && s->running < s->limit) {
            size_t l = 0;
            while (l < lane_count && (!lanes[l].open || lanes[l].busy))
                l++;
            if (l == lane_count)
                return NULL;
            struct request *q = s->first;
            s->first = q->next;
            waiting--;
            if (!s->first)
                s->last = &s->first;
            if (seconds(CLOCK_MONOTONIC) > q->start_by) {
                give_back(q, LATE);
                continue;
            }
            s->running++;
            lanes[l].busy = 1;
            *slot = i;
            *lane = l;
            return q;
        }
    }
    return NULL;
}

static pid_t start_next(int own)
{
    uint32_t slot, lane;
    struct request *q = next_request(&slot, &lane);
    if (!q)
        return -1;
    pid_t pid = start(q, slot, lane, own);
    free(q);
    return pid;
}

/* Have idle starters start what may start, and start the rest ourselves. */
static void start_waiting(void)
{
    size_t count = startable();
    for (size_t i = 0; i < count && i < idle; i++)
        pthread_cond_signal(&work);
    for (size_t i = idle; i < count; i++)
        if (start_next(1) < 0)
            return;
}

static char listed[1 << 16]; /* the children of the main thread: its own, and what outlived a job; not those of starters */

/* How many of them are not our own. */
static long list_strays(void)
{
    ssize_t size = pread(children_fd, listed, sizeof listed - 1, 0);
    long count = -(long)own_count;
    listed[size < 0 ? 0 : size] = 0;
    for (ssize_t i = 0; i < size; i++)
        count += listed[i] == ' ';
    return count;
}

static int is_own(pid_t pid)
{
    for (size_t i = 0; i < child_count; i++)
        if (children[i].pid == pid)
            return 1;
    return 0;
}

static int is_known(pid_t pid)
{
    for (size_t i = 0; i < stray_count; i++)
        if (strays[i] == pid)
            return 1;
    return 0;
}

/* See which orphans have come to us, and let those go that have ended. Whose they are is not known: of every job that ran when one came
 * the runner is told that it may have left it. One read, however many jobs ended. */
static void look_for_strays(void)
{
    if (list_strays() <= 0 && !stray_count)
        return;
    size_t count = 0;
    for (char *at = listed, *next;; at = next) {
        pid_t pid = strtol(at, &next, 10);
        if (next == at)
            break;
        if (is_own(pid) || waitpid(pid, NULL, WNOHANG) > 0)
            continue;
        arrived += !is_known(pid);
        strays_now = room(strays_now, &stray_now_room, count + 1, sizeof *strays_now);
        strays_now[count++] = pid;
    }
    pid_t *before = strays;
    size_t before_room = stray_room;
    strays = strays_now;
    stray_room = stray_now_room;
    stray_count = count;
    strays_now = before;
    stray_now_room = before_room;
}

/* The record of an end; one of a start that was not sent yet becomes it, so that short jobs take one record. */
static struct record *tell_end(const struct child *c)
{
    if (c->flushes != flushes)
        return tell(c->id);
    struct record *r = &records[c->record];
    finish(r, 0);
    r->wall = seconds(CLOCK_REALTIME);
    return r;
}

/* Children that have ended, as the kernel told of them. */
struct end { struct child child; int status; struct rusage usage; };
static struct end *ends;
static size_t end_room;

/* Take a child that has ended off the list. */
static void take_child(struct end *e, size_t i)
{
    e->child = children[i];
    children[i] = children[--child_count];
    own_count -= e->child.own;
    slots[e->child.slot]->running--;
}

/* Collect those of our own that have ended and free their slots, and nothing else: what waits is started before anything is written
 * down. Orphans of jobs go as well. */
static size_t collect(void)
{
    size_t count = 0;
    for (size_t i = 0; i < child_count;) {
        ends = room(ends, &end_room, count + 1, sizeof *ends);
        if (!children[i].own || wait4(children[i].pid, &ends[count].status, WNOHANG, &ends[count].usage) <= 0)
            i++;
        else
            take_child(&ends[count++], i);
    }
    if (children_fd >= 0 && stray_count)
        look_for_strays();
    siginfo_t info = { 0 };
    while (children_fd < 0 && waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) {
        size_t i = 0;
        while (i < child_count && children[i].pid != info.si_pid)
            i++;
        if (i < child_count)
            break; /* it has ended just now: next time */
        waitpid(info.si_pid, NULL, WNOHANG);
        info.si_pid = 0;
    }
    return count;
}

/* Tell of what was collected: no more at a time than there is room for. */
static void tell_ends(struct end *end, size_t count)
{
    static struct record *over[MOST_RECORDS];
    static uint64_t before[MOST_RECORDS];
    size_t over_count = 0;
    if (book->count + count > MOST_RECORDS)
        flush();
    for (size_t i = 0; i < count; i++) {
        struct child *c = &end[i].child;
        const struct rusage *usage = &end[i].usage;
        if (c->nest) {
            int problem = c->nest->problem;
            born(c);
            if (problem && !c->told) { /* it never became its program */
                lanes[c->lane].busy = 0;
                fail(c->id, STAGE_EXEC, problem);
                continue;
            }
        }
        struct record *r = tell_end(c);
        r->pid = c->pid;
        r->status = end[i].status;
        r->lane = c->lane;
        r->began = c->began;
        r->utime_us = usage->ru_utime.tv_sec * 1000000ull + usage->ru_utime.tv_usec;
        r->stime_us = usage->ru_stime.tv_sec * 1000000ull + usage->ru_stime.tv_usec;
        r->maxrss_kb = usage->ru_maxrss;
        r->out_size = lseek(lanes[c->lane].out, 0, SEEK_END);
        r->err_size = lseek(lanes[c->lane].err, 0, SEEK_END);
        before[over_count] = c->arrived;
        over[over_count++] = r;
    }
    if (!over_count)
        return;
    if (children_fd >= 0)
        look_for_strays();
    for (size_t i = 0; i < over_count; i++) {
        struct record *r = over[i];
        if (children_fd >= 0 ? before[i] != arrived : killpg(r->pid, 0) == 0)
            r->flags = SURVIVORS;
        if (!r->flags && !r->out_size && !r->err_size)
            lanes[r->lane].busy = 0;
        else
            r->flags |= WROTE; /* the runner must say when it is empty */
        finish(r, ENDED);
    }
}

static uint32_t number(const char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static struct slot *slot_of(uint32_t i)
{
    slots = room(slots, &slot_count, i + 1, sizeof *slots);
    if (!slots[i]) {
        slots[i] = calloc(1, sizeof **slots);
        if (!slots[i])
            die("launcher: memory");
        slots[i]->last = &slots[i]->first;
    }
    return slots[i];
}

static char *copy(const char *from, size_t size)
{
    char *to = malloc(size + 1);
    if (!to)
        die("launcher: memory");
    memcpy(to, from, size);
    to[size] = 0;
    return to;
}

static void close_lane(struct lane *l)
{
    if (l->open) {
        close(l->out);
        close(l->err);
    }
    l->open = l->busy = 0;
}

static void open_lane(uint32_t i, const char *out)
{
    const char *err = out + strlen(out) + 1;
    lanes = room(lanes, &lane_count, i + 1, sizeof *lanes);
    close_lane(&lanes[i]);
    lanes[i].out = open(out, O_RDWR | O_APPEND | O_CLOEXEC);
    lanes[i].err = open(err, O_RDWR | O_APPEND | O_CLOEXEC);
    if (lanes[i].out < 0 || lanes[i].err < 0)
        die("launcher: lane");
    lanes[i].open = 1;
}

static void add_env(const char *body, size_t size)
{
    uint32_t i = number(body);
    envs = room(envs, &env_count, i + 1, sizeof *envs);
    if (envs[i].words) { /* the number is used again */
        free(envs[i].strings);
        free(envs[i].words);
    }
    envs[i].count = number(body + 4);
    envs[i].words = malloc((envs[i].count + 1) * sizeof(char *));
    char *word = envs[i].strings = copy(body + 8, size - 8);
    if (!envs[i].words)
        die("launcher: memory");
    for (uint32_t k = 0; k < envs[i].count; k++, word = skip(word, 1))
        envs[i].words[k] = word;
}

static void add_request(const char *body, size_t size)
{
    struct request *q = calloc(1, sizeof *q);
    if (!q)
        die("launcher: memory");
    struct slot *s = slot_of(number(body + 4));
    q->id = number(body);
    q->env = number(body + 8);
    memcpy(&q->start_by, body + 12, 8);
    q->argc = number(body + 20);
    q->envc = number(body + 24);
    q->umask = number(body + 28);
    q->strings = copy(body + 32, size - 32);
    waiting++;
    *s->last = q;
    s->last = &q->next;
}

static void obey(char kind, const char *body, size_t size)
{
    switch (kind) {
    case 'E': add_env(body, size); break;
    case 'L': open_lane(number(body), body + 4); break;
    case 'C': lanes[number(body)].busy = 0; break;
    case 'X': close_lane(&lanes[number(body)]); break;
    case 'N': slot_of(number(body))->limit = number(body + 4); break;
    case 'S': add_request(body, size); break;
    case 'R':
        for (size_t i = 0; i < slot_count; i++)
            while (slots[i] && slots[i]->first) {
                struct request *q = slots[i]->first;
                slots[i]->first = q->next;
                waiting--;
                if (!q->next)
                    slots[i]->last = &slots[i]->first;
                give_back(q, 0);
            }
        break;
    default: exit(2);
    }
}

static void listen_to_runner(void)
{
    static char *buffer;
    static size_t filled, space;
    buffer = room(buffer, &space, filled + (1 << 16), 1);
    ssize_t got = recv(0, buffer + filled, space - filled - 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        exit(0);
    if (got < 0)
        return;
    filled += got;
    size_t at = 0;
    while (filled - at >= 5 && filled - at - 4 >= number(buffer + at)) {
        uint32_t size = number(buffer + at);
        char kept = buffer[at + 4 + size];
        buffer[at + 4 + size] = 0; /* so that a string at the end has an end */
        obey(buffer[at + 4], buffer + at + 5, size - 1);
        buffer[at + 4 + size] = kept;
        at += 4 + size;
    }
    memmove(buffer, buffer + at, filled - at);
    filled -= at;
}

static void ring(void)
{
    const uint64_t one = 1;
    if (!sleeps)
        return;
    sleeps = 0;
    if (write(bell, &one, sizeof one) < 0)
        die("launcher: bell");
}

/* See how a child has ended, of which that is known already. */
static void reap_child(struct end *e)
{
    while (wait4(e->child.pid, &e->status, 0, &e->usage) < 0)
        if (errno != EINTR)
            die("launcher: wait");
}

/* A starter: starts a job, and while that runs tells of the one before; waits for it; and so on. */
static void *start_and_wait(void *unused)
{
    struct end end;
    int ended = 0;
    (void)unused;
    if (unshare(CLONE_FS) < 0)
        return NULL; /* it would be in the directory of another's job */
    pthread_mutex_lock(&lock);
    for (;;) {
        pid_t pid = start_next(0);
        if (ended) {
            reap_child(&end);
            tell_ends(&end, 1);
            ended = 0;
        }
        if (!patience())
            flush();
        if (stray_count || pid > 0)
            ring();
        if (pid < 0) {
            if (moved && chdir("/") == 0) /* do not sit in a job's directory */
                moved = 0;
            idle++;
            pthread_cond_wait(&work, &lock);
            idle--;
        }
        if (pid <= 0)
            continue;
        pthread_mutex_unlock(&lock);
        siginfo_t info;
        while (waitid(P_PID, pid, &info, WEXITED | WNOWAIT) < 0) /* were we killed in a wait4, nobody would know how it ended */
            if (errno != EINTR)
                die("launcher: wait");
        pthread_mutex_lock(&lock);
        size_t i = 0;
        while (i < child_count && children[i].pid != pid)
            i++;
        if (i == child_count)
            die("launcher: a child is not known");
        take_child(&end, i);
        ended = 1;
    }
}

enum { STARTERS_MOST = 16 };

static void open_starters(void)
{
    cpu_set_t cores;
    pthread_attr_t attributes;
    pthread_t thread;
    int count = children_fd >= 0 && sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    mallopt(M_ARENA_MAX, 1);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 17);
    for (int i = 0; count > 1 && i < count && i < STARTERS_MOST; i++)
        if (pthread_create(&thread, &attributes, start_and_wait, NULL) != 0)
            return; /* fewer will do */
}

static void nothing(int number)
{
    (void)number;
}

/* The book is in the memory that is our descriptor 3. */
static void open_book(void)
{
    book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
    if (book == MAP_FAILED)
        die("launcher: book");
    close(3);
    records = book->records;
}

int main(void)
{
    sigset_t mask;
    open_book();
    /* A handler, not SIG_IGN: exec resets handlers, so that jobs get the default. Only the runner ends us. */
    const int spared[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE };
    for (int i = 1; i < 32; i++)
        signal(i, SIG_DFL);
    for (size_t i = 0; i < sizeof spared / sizeof *spared; i++)
        signal(spared[i], nothing);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    int signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (signals < 0 || null_fd < 0)
        die("launcher");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0) {
        char name[64];
        snprintf(name, sizeof name, "/proc/self/task/%d/children", (int)getpid());
        children_fd = open(name, O_RDONLY | O_CLOEXEC);
    }
    if ((bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        die("launcher: bell");
    finish(tell(VERSION), HELLO);
    open_starters();
    struct pollfd wait[3] = { { 0, POLLIN, 0 }, { bell, POLLIN, 0 }, { signals, POLLIN, 0 } };
    pthread_mutex_lock(&lock);
    for (;;) {
        int pause = patience();
        if (!pause) {
            flush();
            pause = -1;
        }
        if (!own_count && moved && chdir("/") == 0) /* do not sit in a job's directory */
            moved = 0;
        if (waiting && (pause < 0 || pause > PATIENCE_S * 1000)) /* starters leave records behind */
            pause = (int)(PATIENCE_S * 1000);
        if (unborn) { /* look whether they have become their programs: soon, and less often if one takes long */
            int look = 10 + (int)((seconds(CLOCK_MONOTONIC) - last_start) * 500);
            pause = pause < 0 || look < pause ? look : pause;
        }
        sleeps = pause < 0 || pause > PATIENCE_S * 1000;
        /* Signals are for our own children and for orphans: a starter waits for its own. */
        nfds_t watched = own_count || stray_count || children_fd < 0 ? 3 : 2;
        pthread_mutex_unlock(&lock);
        int got = poll(wait, watched, pause);
        if (got < 0 && errno != EINTR)
            die("launcher: poll");
        pthread_mutex_lock(&lock);
        sleeps = 0;
        if (got < 0)
            continue;
        if (wait[1].revents) {
            uint64_t rung;
            if (read(bell, &rung, sizeof rung) < 0 && errno != EAGAIN)
                die("launcher: bell");
        }
        if (watched == 3 && wait[2].revents) {
            struct signalfd_siginfo info[8];
            while (read(signals, info, sizeof info) == sizeof info)
                ;
            size_t ended = collect();
            start_waiting();
            for (size_t told = 0; told < ended; told += MOST_RECORDS)
                tell_ends(ends + told, ended - told < MOST_RECORDS ? ended - told : MOST_RECORDS);
        }
        if (unborn)
            tell_births();
        if (wait[0].revents)
            listen_to_runner();
        start_waiting();
    }
}
