/* Calls of the preloaded functions that are interrupted: by a signal whose handler makes the same calls, by fork() in another thread,
   by a vfork() child that makes them in its parent's memory; and connections whose header comes in two parts, which a helper thread
   keeps, under the same signals. Usage: interrupted signal|fork|vfork|halves TIMES PORT.
   Prints "done", or ends by a message; whoever waits for a lock for ever is ended by an alarm, or from outside. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int listener, first, second, copies[2];
static volatile sig_atomic_t over;
static volatile long handled, accepted;
static pthread_t main_thread;

static void fail(const char *what)
{
    write(2, what, strlen(what));
    write(2, "\n", 1);
    _exit(1);
}

/* The port that getpeername() says: 4001 for the first connection, 4002 for the second. */
static int port_of(int fd)
{
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0)
        return -errno;
    return ntohs(peer.sin_port);
}

/* Every call that takes the address of a connection, or gives it to another descriptor. */
static void call_all(int copy)
{
    if (port_of(first) != 4001 || port_of(second) != 4002)
        fail("a connection has lost its address");
    if (dup2(first, copy) != copy)
        fail("dup2");
    if (port_of(copy) != 4001)
        fail("a copy has another address");
    if (accept(listener, NULL, NULL) >= 0)
        fail("nobody has connected");
}

static void handler(int signal)
{
    (void)signal;
    int before = errno;
    if (dup2(first, copies[1]) != copies[1] || port_of(copies[1]) != 4001 || accept(listener, NULL, NULL) >= 0)
        fail("a call in the handler went wrong");
    /* Who waits for ever is ended. */
    if (handled++ % 256 == 0)
        alarm(20);
    errno = before;
}

static void *calling(void *unused)
{
    (void)unused;
    while (!over)
        call_all(copies[0]);
    return NULL;
}

/* Accepts a connection whose header came in two parts, if there is one. */
static void accept_halved(void)
{
    int fd = accept(listener, NULL, NULL);
    if (fd >= 0) {
        if (port_of(fd) != 4003 || close(fd) != 0)
            fail("a header of two parts says another address");
        accepted++;
    } else if (errno != EAGAIN && errno != ECONNABORTED) {
        fail("accept");
    }
}

static void accepting_handler(int signal)
{
    (void)signal;
    int before = errno;
    if (!pthread_equal(pthread_self(), main_thread))
        fail("a signal is handled on a thread of the library");
    accept_halved();
    if (handled++ % 256 == 0)
        alarm(20);
    errno = before;
}

static void start_signals(void (*by)(int))
{
    struct sigaction action = {.sa_handler = by, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec often = {.it_interval = {0, 19000}, .it_value = {0, 19000}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &often, NULL) != 0)
        fail("a timer");
}

static void by_signal(long times)
{
    start_signals(handler);
    while (handled < times)
        call_all(copies[0]);
}

static void by_halves(long times, struct sockaddr_in address)
{
    /* Version 2, over IPv4, and a NOOP TLV: longer than what is looked at first. */
    static char header[16 + 12 + 3 + 1200] = "\r\n\r\n\0\r\nQUIT\n\x21\x11\x04\xbf\xcb\0\x71\x07\x0a\0\0\x01\x0f\xa3\x01\xbb\x04\x04\xb0";
    const size_t half = 1100, rest = sizeof header - half;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    main_thread = pthread_self();
    start_signals(accepting_handler);
    for (long time = 0; time < times; time++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client, (struct sockaddr *)&address, sizeof address) != 0 || send(client, header, half, 0) != (ssize_t)half)
            fail("a client");
        accept_halved();
        if (accepted != time)
            fail("accepted without its header");
        if (send(client, header + half, rest, 0) != (ssize_t)rest)
            fail("a client's second part");
        while (accepted == time) {
            struct pollfd woken = {.fd = listener, .events = POLLIN};
            poll(&woken, 1, 1);
            accept_halved();
            /* The handler interrupts the allocator, too, whose lock it must not need. */
            for (int often = 0; often < 64; often++) {
                void *volatile memory = malloc(70000);
                free(memory);
            }
        }
        close(client);
    }
}

/* Children that are there at a time: none waits for the scheduler alone. */
enum { CHILDREN = 64 };

static void by_fork(long times)
{
    pthread_t other;
    if (pthread_create(&other, NULL, calling, NULL) != 0)
        fail("a thread");
    for (long time = 0; time < times + CHILDREN; time++) {
        alarm(20);
        if (time >= CHILDREN) {
            int status;
            if (wait(&status) < 0 || status != 0)
                fail("a child has not ended as it should");
        }
        pid_t child = time < times ? fork() : 1;
        if (child == 0) {
            alarm(20);
            call_all(copies[1]);
            _exit(0);
        }
        if (child < 0)
            fail("fork");
    }
    over = 1;
    pthread_join(other, NULL);
}

static void by_vfork(long times)
{
    for (long time = 0; time < times; time++) {
        alarm(20);
        pid_t child = vfork();
        if (child == 0) {
            /* As before exec: the parent's second connection is the child's standard input now, in the child only. */
            if (dup2(first, second) != second || port_of(second) != 4001)
                _exit(1);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            fail("a child has not ended as it should");
        if (port_of(second) != 4002)
            fail("a child has changed its parent's table");
    }
}

static int connection(void)
{
    int fd;
    do
        fd = accept(listener, NULL, NULL);
    while (fd < 0 && errno == EAGAIN);
    return fd;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    int yes = 1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 16) != 0)
        return 2;
    first = connection();
    second = connection();
    copies[0] = dup(first);
    copies[1] = dup(first);
    long times = atol(arguments[2]);
    if (strcmp(arguments[1], "signal") == 0)
        by_signal(times);
    else if (strcmp(arguments[1], "fork") == 0)
        by_fork(times);
    else if (strcmp(arguments[1], "vfork") == 0)
        by_vfork(times);
    else if (strcmp(arguments[1], "halves") == 0)
        by_halves(times, address);
    else
        return 2;
    puts("done");
    return 0;
}
