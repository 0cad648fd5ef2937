/* An engine stand-in: answers as vLLM does, at once and always the same, so that what is measured is what stands before it.
 *
 *   engine PORT [RATE [EVENTS]]      RATE: events per second of one stream (200); EVENTS: of one stream (200)
 *
 * One process, one thread, epoll. Chat completions and completions are a fixed JSON body, or with `"stream": true` an event with the
 * role and EVENTS content events, the first at once, as vLLM does, and one every 1/RATE seconds, a finish event, the usage event where it was asked for, and [DONE]; each
 * event is one write. It listens on 127.0.0.1 and 127.0.0.2, which may stand for two engines. All other paths answer what health checks and worker discovery look at. Prints "listening PORT" when it does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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

enum { HEAD_MAX = 65536, BODY_MAX = 4 << 20, CONNECTIONS = 8192, EVENT_MAX = 512 };

#define CHUNK "\"id\":\"chatcmpl-5f0c6c6e1b6f4c54\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"demo\","
#define TEXT "One, two, three, four, five, six, seven, eight, nine, ten; and so it goes on, one by one, until the last."

static const char ANSWER[] =
    "{\"id\":\"chatcmpl-5f0c6c6e1b6f4c54\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"demo\",\"choices\":[{\"index\":0,"
    "\"message\":{\"role\":\"assistant\",\"content\":\"" TEXT TEXT TEXT "\",\"refusal\":null,\"annotations\":null,\"audio\":null,"
    "\"function_call\":null,\"tool_calls\":[],\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,"
    "\"token_ids\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":400,\"total_tokens\":520,"
    "\"completion_tokens\":120,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"kv_transfer_params\":null}";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"demo\",\"object\":\"model\",\"created\":1760000000,\"owned_by\":\"vllm\",\"root\":\"demo\","
    "\"parent\":null,\"max_model_len\":1000000}]}";
static const char SERVER[] = "{\"model_path\":\"demo\",\"model_id\":\"demo\",\"served_model_name\":\"demo\",\"tokenizer_path\":\"demo\",\"version\":\"0.32.0\"}";
static const char METRICS[] = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"demo\"} 0.0\n"
                              "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"demo\"} 0.0\n";

typedef struct Connection {
    int fd, events_left, wants_usage, streaming;
    size_t used, size;      /* of `in` */
    size_t out_used, out_at; /* of `out`: what the socket would not take */
    char *in, *out;
    int64_t due;            /* of the next event, ns */
    struct Connection *next; /* in the queue of streams, which is sorted by `due` because all streams have one rate */
} Connection;

static int poller, events_per_stream = 200;
static int64_t period_ns = 5000000;
static Connection *first, *last;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void forget(Connection *c) {
    Connection **at = &first, *before = NULL;
    while (*at && *at != c) before = *at, at = &(*at)->next;
    if (*at) {
        *at = c->next;
        if (last == c) last = before;
    }
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void put(Connection *c, const char *data, size_t size) {
    if (!c->out_used) {
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
        if (sent == (ssize_t)size) return;
        if (sent < 0 && errno != EAGAIN) return; /* epoll will tell */
        if (sent > 0) data += sent, size -= sent;
    }
    c->out = realloc(c->out, c->out_used + size);
    memcpy(c->out + c->out_used, data, size);
    c->out_used += size;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void flush(Connection *c) {
    while (c->out_at < c->out_used) {
        ssize_t sent = send(c->fd, c->out + c->out_at, c->out_used - c->out_at, MSG_NOSIGNAL);
        if (sent <= 0) return;
        c->out_at += sent;
    }
    c->out_at = c->out_used = 0;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void answer(Connection *c, const char *type, const char *body, size_t size) {
    char out[4096];
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 200 OK\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\ncontent-length: %zu\r\ncontent-type: %s\r\n\r\n",
                     size, type);
    memcpy(out + n, body, size);
    put(c, out, n + size);
}

static size_t event(char *out, const char *body) { /* one HTTP chunk with one event in it */
    return sprintf(out, "%zx\r\ndata: %s\n\n\r\n", strlen(body) + 8, body);
}

static void emit(Connection *c, const char *head) {
    char out[EVENT_MAX * 4], body[EVENT_MAX];
    size_t n = 0;
    if (head) {
        n = sprintf(out, "%s", head);
        n += event(out + n, "{" CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null}");
    } else if (c->events_left > 0) {
        snprintf(body, sizeof body, "{" CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word %d\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}",
                 events_per_stream - c->events_left);
        n = event(out, body);
        c->events_left--;
    } else {
        n = event(out, "{" CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}]}");
        if (c->wants_usage) {
            snprintf(body, sizeof body, "{" CHUNK "\"choices\":[],\"usage\":{\"prompt_tokens\":400,\"total_tokens\":%d,\"completion_tokens\":%d}}",
                     400 + events_per_stream, events_per_stream);
            n += event(out + n, body);
        }
        n += event(out + n, "[DONE]");
        n += sprintf(out + n, "0\r\n\r\n");
        c->streaming = 0;
    }
    put(c, out, n);
    if (!c->streaming) return;
    if (head) {
        c->due = now_ns() - period_ns;
        emit(c, NULL);
        return;
    }
    c->due += period_ns;
    c->next = NULL;
    if (last) last->next = c; else first = c;
    last = c;
}

static int is_path(const char *head, const char *path) { return !strncmp(strchr(head, ' ') + 1, path, strlen(path)); }

static void respond(Connection *c, const char *head, const char *body, size_t size) {
    if (is_path(head, "/v1/chat/completions") || is_path(head, "/v1/completions")) {
        if (memmem(body, size, "\"stream\":true", 13) || memmem(body, size, "\"stream\": true", 14)) {
            c->streaming = 1;
            c->events_left = events_per_stream;
            c->wants_usage = memmem(body, size, "\"include_usage\":true", 20) || memmem(body, size, "\"include_usage\": true", 21);
            emit(c, "HTTP/1.1 200 OK\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\n"
                    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
        } else answer(c, "application/json", ANSWER, sizeof ANSWER - 1);
    } else if (is_path(head, "/v1/models")) answer(c, "application/json", MODELS, sizeof MODELS - 1);
    else if (is_path(head, "/metrics")) answer(c, "text/plain; version=0.0.4; charset=utf-8", METRICS, sizeof METRICS - 1);
    else answer(c, "application/json", SERVER, sizeof SERVER - 1);
}

/* Take one chunked body apart in place; returns the bytes it occupied, 0 when it is not whole. */
static size_t dechunk(char *body, size_t have, size_t *size) {
    size_t at = 0;
    *size = 0;
    while (1) {
        char *line = memmem(body + at, have - at, "\r\n", 2);
        if (!line) return 0;
        size_t length = strtoul(body + at, NULL, 16), start = line + 2 - body;
        if (have < start + length + 2) return 0;
        memmove(body + *size, body + start, length);
        *size += length;
        at = start + length + 2;
        if (!length) return at;
    }
}

/* Serve the requests that are whole; 0 when the connection should go. */
static int serve(Connection *c) {
    while (c->used && !c->streaming) {
        char *end = memmem(c->in, c->used, "\r\n\r\n", 4);
        if (!end) return c->used < HEAD_MAX;
        *end = 0;
        if (!strstr(c->in, " HTTP/1.1")) return 0; /* who tries HTTP/2 first is told so by the end of the connection */
        char *body = end + 4, *length = strcasestr(c->in, "\ncontent-length:");
        size_t have = c->used - (body - c->in), size = length ? strtoul(length + 16, NULL, 10) : 0, taken = size;
        if (strcasestr(c->in, "\nexpect: 100-continue")) put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        if (strcasestr(c->in, "\ntransfer-encoding: chunked")) {
            char *copy = malloc(have);
            memcpy(copy, body, have);
            taken = dechunk(copy, have, &size);
            if (taken) memcpy(body, copy, size);
            free(copy);
            if (!taken) { *end = '\r'; return have < BODY_MAX; }
        }
        if (size > BODY_MAX) return 0;
        if (have < taken) { *end = '\r'; return 1; }
        respond(c, c->in, body, size);
        c->used -= body + taken - c->in;
        memmove(c->in, body + taken, c->used);
    }
    return 1;
}

static int readable(Connection *c) {
    while (1) {
        if (c->size - c->used < 16384) c->in = realloc(c->in, (c->size = c->size ? c->size * 2 : 32768) + 1);
        ssize_t got = recv(c->fd, c->in + c->used, c->size - c->used, 0);
        if (got < 0) return errno == EAGAIN;
        if (!got) return 0;
        c->used += got;
        int whole = c->used < c->size;
        if (!serve(c)) return 0;
        if (whole) return 1;
    }
}

static void take_connections(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

/* Listen on 127.0.0.(1 + number); a port of 0 is replaced by the one taken. */
static int listen_on(int number, int *port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK + number)};
    socklen_t length = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096)) { perror("engine"); exit(1); }
    getsockname(listener, (struct sockaddr *)&address, &length);
    *port = ntohs(address.sin_port);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    return listener;
}

int main(int count, char **args) {
    if (count < 2) return fprintf(stderr, "usage: engine PORT [RATE [EVENTS]]\n"), 2;
    if (count > 2) period_ns = 1e9 / atof(args[2]);
    if (count > 3) events_per_stream = atoi(args[3]);
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    int port = atoi(args[1]), first_listener = listen_on(0, &port);
    int second_listener = listen_on(1, &port);
    struct epoll_event ready[256];
    printf("listening %d\n", port);
    fflush(stdout);
    while (1) {
        struct timespec wait = {1, 0};
        if (first) {
            int64_t left = first->due - now_ns();
            wait = left > 0 ? (struct timespec){left / 1000000000, left % 1000000000} : (struct timespec){0, 0};
        }
        int n = epoll_pwait2(poller, ready, 256, &wait, NULL);
        for (int i = 0; i < n; i++) {
            Connection *c = ready[i].data.ptr;
            if (!c) { take_connections(first_listener), take_connections(second_listener); continue; }
            if (ready[i].events & EPOLLOUT) flush(c);
            if ((ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !readable(c)) forget(c);
        }
        int64_t now = now_ns();
        while (first && first->due <= now) {
            Connection *c = first;
            first = c->next;
            if (!first) last = NULL;
            emit(c, NULL);
            if (!c->streaming && c->used && !serve(c)) forget(c);
        }
    }
}
