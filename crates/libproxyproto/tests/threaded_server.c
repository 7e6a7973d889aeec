/* A server as many are written: several threads accept on one blocking socket, keep connections in epoll, and answer each
   byte with the address that getpeername() says. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener, poller;

static void *accepting(void *unused)
{
    (void)unused;
    for (;;) {
        struct sockaddr_storage accepted, named;
        socklen_t length = sizeof accepted, named_length = sizeof named;
        int fd = accept(listener, (struct sockaddr *)&accepted, &length);
        if (fd < 0)
            continue;
        /* What accept() and getpeername() say must be the same. */
        if (getpeername(fd, (struct sockaddr *)&named, &named_length) != 0 || length != named_length ||
            memcmp(&accepted, &named, length) != 0)
            abort();
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
    return NULL;
}

static void *serving(void *unused)
{
    (void)unused;
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(poller, events, 64, -1);
        for (int i = 0; i < count; i++) {
            char byte, text[INET_ADDRSTRLEN], line[64];
            int fd = events[i].data.fd;
            ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
            /* One thread at a time has a connection: nobody else closes the descriptor meanwhile. */
            struct epoll_event again = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = fd};
            if (got < 0 && errno == EAGAIN) {
                epoll_ctl(poller, EPOLL_CTL_MOD, fd, &again);
                continue;
            }
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            if (got <= 0 || getpeername(fd, (struct sockaddr *)&peer, &length) != 0) {
                close(fd);
                continue;
            }
            inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text);
            int size = snprintf(line, sizeof line, "%s:%d\n", text, ntohs(peer.sin_port));
            if (send(fd, line, size, MSG_NOSIGNAL) != size)
                close(fd);
            else
                epoll_ctl(poller, EPOLL_CTL_MOD, fd, &again);
        }
    }
    return NULL;
}

int main(int count, char **arguments)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    if (count != 2)
        return 2;
    address.sin_port = htons(atoi(arguments[1]));
    listener = socket(AF_INET, SOCK_STREAM, 0);
    poller = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096) != 0)
        return 1;
    pthread_t thread;
    for (int i = 0; i < 4; i++) {
        pthread_create(&thread, NULL, accepting, NULL);
        pthread_create(&thread, NULL, serving, NULL);
    }
    pthread_join(thread, NULL);
    return 0;
}
