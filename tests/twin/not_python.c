/* A program that is not Python and uses the GPU that cupti_stand_in.c makes up. Its arguments say what it does, in their
 * order: `init` starts CUDA, `steps 30` submits 30 steps, and so on. It ends with 0 if all of that was possible. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A function of the libcupti that STAND_IN names. If the recorder has loaded another one, it sees nothing of this. */
static void *function(const char *name) {
    static void *cupti;
    if (!cupti) cupti = dlopen(getenv("STAND_IN"), RTLD_NOW);
    void *found = cupti ? dlsym(cupti, name) : NULL;
    if (!found) _exit(90);
    return found;
}

static void steps(int count) { ((void (*)(int, int))function("stand_in_steps"))(count, 20); }

/* Close all files, and take their numbers. */
static void take_all_files(void) {
    char name[32];
    for (int number = 3; number < 1024; number++) close(number);
    for (int number = 3; number < 1000; number++) {
        snprintf(name, sizeof name, "mine-%d", number);
        if (open(name, O_WRONLY | O_CREAT, 0644) < 0) _exit(91);
    }
}

int main(int count, char **arguments) {
    void *driver = NULL;
    for (int place = 1; place < count; place++) {
        const char *what = arguments[place], *value = place + 1 < count ? arguments[place + 1] : "";
        if (!strcmp(what, "load")) dlopen(value, RTLD_NOW), place++;
        else if (!strcmp(what, "init")) {
            driver = dlopen("libcuda.so.1", RTLD_NOW);
            if (!driver || ((int (*)(unsigned))dlsym(driver, "cuInit"))(0)) return 92;
        } else if (!strcmp(what, "steps")) steps(atoi(value)), place++;
        else if (!strcmp(what, "kinds")) ((void (*)(void))function("stand_in_kinds"))();
        else if (!strcmp(what, "paced")) { /* for so many milliseconds, a step each */
            for (int left = atoi(value); left > 0; left--) {
                ((void (*)(void))function("stand_in_now"))();
                steps(1);
                usleep(1000);
            }
            place++;
        } else if (!strcmp(what, "computes") || !strcmp(what, "sleeps")) { /* 5 ms before each of so many steps */
            for (int left = atoi(value); left > 0; left--) {
                ((void (*)(void))function("stand_in_now"))();
                steps(1);
                clock_t began = clock();
                if (!strcmp(what, "sleeps")) usleep(5000);
                else while (clock() - began < 5 * CLOCKS_PER_SEC / 1000);
            }
            place++;
        } else if (!strcmp(what, "drop")) ((void (*)(int))function("stand_in_drop"))(atoi(value)), place++;
        else if (!strcmp(what, "settle")) ((void (*)(void))function("stand_in_settle"))();
        else if (!strcmp(what, "released"))
            while (((int (*)(void))function("stand_in_subscribed"))()) usleep(10000);
        else if (!strcmp(what, "limit")) {
            struct rlimit limit = {strtoull(value, NULL, 10), RLIM_INFINITY};
            if (setrlimit(RLIMIT_FSIZE, &limit)) return 93;
            place++;
        } else if (!strcmp(what, "close")) take_all_files();
        else if (!strcmp(what, "fork")) { /* the child does the rest, the parent waits and repeats it */
            int status;
            if (fork() && (wait(&status) < 0 || status)) return 94;
        } else if (!strcmp(what, "exec")) execv(value, arguments + place + 1);
        else if (!strcmp(what, "kill")) raise(atoi(value));
        else if (!strcmp(what, "exit")) return atoi(value);
        else if (!strcmp(what, "say")) puts(value), fflush(stdout), place++;
        else return 95;
    }
    return 0;
}
