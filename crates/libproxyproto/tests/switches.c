/* A server that answers each connection with a line: the client's port as accept, getpeername, and getpeername of copies by dup, dup2, dup3
   and fcntl say it, and its own port as getsockname says it. Usage: switches PORT.
   Or a client: switches PORT HOST [nonblocking], which connects, sends "payload" and ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int peer_port(int fd)
{
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int result = getpeername(fd, (struct sockaddr *)&peer, &length);
    return result == 0 ? ntohs(peer.sin_port) : -1;
}

static int copied_port(int copy)
{
    int port = peer_port(copy);
    close(copy);
    return port;
}

static int serve(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 16) != 0)
        return 2;
    for (;;) {
        struct sockaddr_in peer, own;
        socklen_t length = sizeof peer, own_length = sizeof own;
        int fd = accept(listener, (struct sockaddr *)&peer, &length);
        if (fd < 0)
            return 2;
        getsockname(fd, (struct sockaddr *)&own, &own_length);
        dprintf(fd, "accept=%d getpeername=%d dup=%d dup2=%d dup3=%d fcntl=%d getsockname=%d\n", ntohs(peer.sin_port),
                peer_port(fd), copied_port(dup(fd)), copied_port(dup2(fd, 200)), copied_port(dup3(fd, 201, O_CLOEXEC)),
                copied_port(fcntl(fd, F_DUPFD, 300)), ntohs(own.sin_port));
        shutdown(fd, SHUT_WR);
        char rest[256];
        while (read(fd, rest, sizeof rest) > 0)
            ;
        close(fd);
    }
}

static int ask(int port, const char *host, int nonblocking)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int is_v6 = inet_pton(AF_INET, host, &v4.sin_addr) != 1;
    if (is_v6 && inet_pton(AF_INET6, host, &v6.sin6_addr) != 1)
        return 2;
    int fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
    int result = connect(fd, is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4, is_v6 ? sizeof v6 : sizeof v4);
    if (result != 0 && !(nonblocking && errno == EINPROGRESS))
        return 3;
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    if (poll(&writable, 1, 5000) != 1)
        return 4;
    /* The socket is as the program has made it. */
    if (((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) != nonblocking)
        return 5;
    return write(fd, "payload", 7) == 7 && close(fd) == 0 ? 0 : 6;
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    return count == 2 ? serve(atoi(arguments[1])) : ask(atoi(arguments[1]), arguments[2], count == 4);
}
