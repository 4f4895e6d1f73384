/* Queries the C library's resolver like a program in a pod: `stub KIND NAME ...` prints a line `KIND NAME<tab>ANSWER` per answer.
 * Without an answer, ANSWER is the library's text of the error.
 *
 *   addresses, ipv4, ipv6   getaddrinfo
 *   canonical               getaddrinfo's canonical name
 *   name                    getnameinfo of an address
 *   srv, txt                res_query */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const char *kind, *name;

/* A message of any length. */
static unsigned char message[65536];

static void say(const char *answer) { printf("%s %s\t%s\n", kind, name, answer); }

static void fail(int error) {
    switch (error) {
    case EAI_NONAME: return say("EAI_NONAME");
    case EAI_AGAIN: return say("EAI_AGAIN");
    case EAI_FAIL: return say("EAI_FAIL");
#ifdef EAI_NODATA
    case EAI_NODATA: return say("EAI_NODATA");
#endif
    default: return say(gai_strerror(error));
    }
}

static void addresses(int family, int flags) {
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = flags}, *all;
    int error = getaddrinfo(name, "18515", &hints, &all);
    if (error) return fail(error);
    if (flags & AI_CANONNAME) {
        say(all->ai_canonname);
    } else {
        for (struct addrinfo *one = all; one; one = one->ai_next) {
            char text[NI_MAXHOST];
            error = getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
            if (error) fail(error); else say(text);
        }
    }
    freeaddrinfo(all);
}

static void name_of_address(void) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *address;
    char text[NI_MAXHOST];
    int error = getaddrinfo(name, NULL, &hints, &address);
    if (error) return fail(error);
    error = getnameinfo(address->ai_addr, address->ai_addrlen, text, sizeof text, NULL, 0, NI_NAMEREQD);
    if (error) fail(error); else say(text);
    freeaddrinfo(address);
}

static void record(ns_rr *record, int length) {
    static char text[65536];
    const unsigned char *data = ns_rr_rdata(*record), *end = data + ns_rr_rdlen(*record);
    if (ns_rr_type(*record) == ns_t_srv) {
        char target[NS_MAXDNAME];
        if (dn_expand(message, message + length, data + 6, target, sizeof target) < 0) return say("no target");
        snprintf(text, sizeof text, "%d %d %d %s", ns_get16(data), ns_get16(data + 2), ns_get16(data + 4), target);
    } else {
        /* The character strings of a text, each behind its length. */
        char *at = text;
        for (; data < end; data += 1 + *data) {
            memcpy(at, data + 1, *data);
            at += *data;
        }
        *at = 0;
    }
    say(text);
}

static void records(ns_type type) {
    ns_msg parsed;
    ns_rr one;
    int length = res_query(name, ns_c_in, type, message, sizeof message);
    if (length < 0) {
        switch (h_errno) {
        case HOST_NOT_FOUND: return say("HOST_NOT_FOUND");
        case TRY_AGAIN: return say("TRY_AGAIN");
        case NO_RECOVERY: return say("NO_RECOVERY");
        case NO_DATA: return say("NO_DATA");
        default: return say("no reason");
        }
    }
    if (length > (int)sizeof message || ns_initparse(message, length, &parsed)) return say("no message");
    for (int i = 0; i < ns_msg_count(parsed, ns_s_an); i++) {
        if (ns_parserr(&parsed, ns_s_an, i, &one)) return say("no record");
        if (ns_rr_type(one) == type) record(&one, length); else say("a record of another type");
    }
}

int main(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        kind = words[i];
        name = words[i + 1];
        if (!strcmp(kind, "addresses")) addresses(AF_UNSPEC, 0);
        else if (!strcmp(kind, "ipv4")) addresses(AF_INET, 0);
        else if (!strcmp(kind, "ipv6")) addresses(AF_INET6, 0);
        else if (!strcmp(kind, "canonical")) addresses(AF_UNSPEC, AI_CANONNAME);
        else if (!strcmp(kind, "name")) name_of_address();
        else if (!strcmp(kind, "srv")) records(ns_t_srv);
        else if (!strcmp(kind, "txt")) records(ns_t_txt);
        else return 2;
    }
    return 0;
}
