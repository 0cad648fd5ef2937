/* A load generator that looks at every byte: closed loop, one request in flight per connection.
 *
 *   load PORT CONNECTIONS SECONDS PER_CONNECTION SPREAD_MS REQUEST EXPECTED
 *
 * Sends the bytes of file REQUEST over and over on CONNECTIONS connections to 127.0.0.1:PORT, for SECONDS or until each connection has
 * made PER_CONNECTION requests (0: no such end); connections start evenly over SPREAD_MS. Every body is compared with file EXPECTED.
 * A run in which no byte comes for STALL_SECONDS ends, with `failure` saying so; one that cannot connect says why on stderr and ends
 * with 1. One process, one thread, epoll. Prints one JSON object: counts, and latencies in microseconds. A stream's events are counted by their
 * blank lines; `alone` are those that came in a read of their own, `gaps` the times between a stream's events as reads saw them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ = 262144, HEAD_MAX = 32768, STALL_SECONDS = 20 };
enum { HEAD, FIXED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE };

typedef struct { char *data; size_t size; } Bytes;
typedef struct { int64_t *at; size_t used, size; } Samples;
typedef struct {
    int fd, state, status, newlines, differs, requests, busy;
    size_t sent, head_used, left, body;
    int64_t start_at, began, last_event;
    char head[HEAD_MAX + 1];
} Connection;

static Bytes request, expected;
static Samples latencies, firsts, gaps;
static long complete, failed, differing, events, alone, bytes;
static int port, poller, per_connection;
static int64_t stop_at, last_end, last_byte; /* of an answer */
static char failure[256];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void note(Samples *s, int64_t value) {
    if (s->used == s->size) s->at = realloc(s->at, (s->size = s->size ? s->size * 2 : 4096) * sizeof *s->at);
    s->at[s->used++] = value;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double quantile(Samples *s, double q) { return s->used ? s->at[(size_t)(q * (s->used - 1) + 0.5)] / 1000.0 : 0.0; }

static Bytes slurp(const char *path) {
    FILE *file = fopen(path, "rb");
    Bytes b = {NULL, 0};
    if (!file) { perror(path); exit(1); }
    fseek(file, 0, SEEK_END);
    b.size = ftell(file);
    rewind(file);
    b.data = malloc(b.size + 1);
    if (fread(b.data, 1, b.size, file) != b.size) exit(1);
    fclose(file);
    return b;
}

static void watch(Connection *c, int op, uint32_t what) {
    struct epoll_event e = {.events = what, .data.ptr = c};
    epoll_ctl(poller, op, c->fd, &e);
}

static void push(Connection *c) {
    while (c->sent < request.size) {
        ssize_t n = send(c->fd, request.data + c->sent, request.size - c->sent, MSG_NOSIGNAL);
        if (n <= 0) { watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT); return; }
        c->sent += n;
        if (c->sent == request.size && n < (ssize_t)request.size) watch(c, EPOLL_CTL_MOD, EPOLLIN);
    }
}

static void give_up(const char *why) {
    fprintf(stderr, "cannot connect to 127.0.0.1:%d: %s, after %ld whole answers and %ld failed ones", port, why, complete, failed);
    if (*failure) fprintf(stderr, ", the first of which: %s", failure);
    fputc('\n', stderr);
    exit(1);
}

static void begin(Connection *c) {
    if (c->fd < 0) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int one = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) give_up(strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
    }
    c->state = HEAD;
    c->sent = c->head_used = c->body = c->left = 0;
    c->newlines = c->differs = c->status = 0;
    c->last_event = 0;
    c->busy = 1;
    c->began = now_ns();
    push(c);
}

static void end(Connection *c, const char *why) {
    int64_t now = now_ns();
    last_end = now;
    c->busy = 0;
    c->requests++;
    if (why) {
        failed++;
        if (!*failure) snprintf(failure, sizeof failure, "%s (status %d, %zu bytes)", why, c->status, c->body);
        close(c->fd);
        c->fd = -1;
    } else {
        complete++;
        differing += c->differs || c->body != expected.size;
        note(&latencies, now - c->began);
    }
    if (now < stop_at && (!per_connection || c->requests < per_connection)) begin(c);
}

static void take_body(Connection *c, const char *data, size_t size, int *in_this_read, int64_t now) {
    if (c->body + size > expected.size || memcmp(expected.data + c->body, data, size)) c->differs = 1;
    c->body += size;
    bytes += size;
    for (const char *at = data, *stop = data + size; at < stop;) {
        const char *line = memchr(at, '\n', stop - at);
        if (!line) { c->newlines = 0; break; }
        c->newlines = (line == at ? c->newlines : 0) + 1;
        if (c->newlines == 2) {
            if (c->last_event) note(&gaps, now - c->last_event);
            else note(&firsts, now - c->began);
            c->last_event = now;
            events++;
            ++*in_this_read;
            c->newlines = 0;
        }
        at = line + 1;
    }
}

/* Read the head that has come; returns 0 when it is none. */
static int take_head(Connection *c) {
    c->head[c->head_used] = 0;
    char *length = strcasestr(c->head, "\ncontent-length:");
    if (sscanf(c->head, "HTTP/1.1 %d", &c->status) != 1) return 0;
    if (strcasestr(c->head, "\ntransfer-encoding: chunked")) c->state = CHUNK_SIZE;
    else if (length) c->state = FIXED, c->left = strtoul(length + 16, NULL, 10);
    else c->state = UNTIL_CLOSE;
    return 1;
}

/* Parse what one read brought; 1 when the response is whole, -1 when it is none, 0 for more. */
static int parse(Connection *c, const char *at, size_t size, int *in_this_read, int64_t now) {
    const char *stop = at + size;
    while (at < stop || (c->state == FIXED && !c->left)) {
        size_t have = stop - at;
        if (c->state == HEAD) {
            if (c->head_used == HEAD_MAX) return -1;
            c->head[c->head_used++] = *at++;
            if (c->head_used >= 4 && !memcmp(c->head + c->head_used - 4, "\r\n\r\n", 4) && !take_head(c)) return -1;
        } else if (c->state == FIXED || c->state == CHUNK) {
            size_t n = have < c->left ? have : c->left;
            if (n) take_body(c, at, n, in_this_read, now);
            at += n;
            c->left -= n;
            if (!c->left && c->state == FIXED) return 1;
            if (!c->left) c->state = CHUNK_END;
        } else if (c->state == CHUNK_SIZE) {
            char ch = *at++;
            if (ch == '\n') {
                c->state = c->left ? CHUNK : TRAILER;
                c->head_used = 0;
            } else if (ch != '\r') {
                int digit = ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
                if (digit < 0) return -1;
                c->left = c->left * 16 + digit;
            }
        } else if (c->state == CHUNK_END) {
            if (*at++ == '\n') c->state = CHUNK_SIZE, c->left = 0;
        } else if (c->state == TRAILER) { /* no trailers are expected: the blank line */
            if (*at++ == '\n') return 1;
        } else {
            take_body(c, at, have, in_this_read, now);
            at = stop;
        }
    }
    return 0;
}

static void readable(Connection *c) {
    static char buffer[READ];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (!c->busy) { close(c->fd); c->fd = -1; return; }
    if (got <= 0) {
        if (c->state == UNTIL_CLOSE && !got) { close(c->fd); c->fd = -1; end(c, NULL); }
        else end(c, got ? strerror(errno) : "connection closed");
        return;
    }
    last_byte = now_ns();
    int in_this_read = 0, whole = parse(c, buffer, got, &in_this_read, last_byte);
    alone += in_this_read == 1;
    if (whole < 0) end(c, "not HTTP");
    else if (whole) {
        int closes = strcasestr(c->head, "\nconnection: close") != NULL;
        if (closes) { close(c->fd); c->fd = -1; }
        end(c, c->status == 200 ? NULL : "an error status");
    }
}

static void report(int64_t began) {
    Samples *all[] = {&latencies, &firsts, &gaps};
    const char *names[] = {"latency", "first", "gap"};
    double seconds = (last_end - began) / 1e9;
    printf("{\"requests\": %ld, \"failed\": %ld, \"differing\": %ld, \"seconds\": %.6f, \"events\": %ld, \"alone\": %ld, \"bytes\": %ld",
           complete, failed, differing, seconds, events, alone, bytes);
    for (int i = 0; i < 3; i++) {
        if (all[i]->used) qsort(all[i]->at, all[i]->used, sizeof(int64_t), ascending);
        printf(", \"%s_p50\": %.2f, \"%s_p99\": %.2f, \"%s_max\": %.2f", names[i], quantile(all[i], 0.5), names[i],
               quantile(all[i], 0.99), names[i], quantile(all[i], 1.0));
    }
    printf(", \"failure\": \"%s\"}\n", failure);
}

int main(int count, char **args) {
    if (count != 8) return fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS PER_CONNECTION SPREAD_MS REQUEST EXPECTED\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    port = atoi(args[1]);
    int n = atoi(args[2]), started = 0;
    per_connection = atoi(args[4]);
    request = slurp(args[6]);
    expected = slurp(args[7]);
    poller = epoll_create1(0);
    Connection *all = calloc(n, sizeof *all);
    int64_t began = now_ns(), spread = atof(args[5]) * 1e6;
    stop_at = began + (int64_t)(atof(args[3]) * 1e9);
    last_end = last_byte = began;
    for (int i = 0; i < n; i++) all[i].fd = -1, all[i].start_at = began + spread * i / n;
    struct epoll_event ready[256];
    while (1) {
        int64_t now = now_ns();
        while (started < n && all[started].start_at <= now) begin(&all[started++]);
        int busy = started < n;
        for (int i = 0; i < n && !busy; i++) busy = all[i].busy;
        if (!busy) break;
        if (now - last_byte > STALL_SECONDS * 1000000000LL) {
            int waiting = 0;
            for (int i = 0; i < started; i++) waiting += all[i].busy;
            failed += waiting;
            snprintf(failure, sizeof failure, "not a byte came for %d s; %d of %d connections waited for an answer",
                     STALL_SECONDS, waiting, n);
            break;
        }
        int got = epoll_wait(poller, ready, 256, started < n ? 1 : 1000);
        for (int i = 0; i < got; i++) {
            Connection *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) push(c);
            if (c->fd >= 0 && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c);
        }
    }
    report(began);
    return 0;
}
