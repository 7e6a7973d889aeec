// SPDX-License-Identifier: MIT OR GPL-2.0-only
// What the programs share with user space: the layouts here are repeated in src/inline/layout.rs, in the same order.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#define MAX_HEADER 536
#define MAX_RULES 16
#define NETWORKS 65536

// An IPv4 address is kept as ::ffff:a.b.c.d. Addresses and ports are in network order.
struct address { u32 word[4]; };

enum direction { TO_SERVER, TO_CLIENT };

// TO_SERVER: remote is what the balancer's packets carry; TO_CLIENT: remote is the client, as the server's answers carry it.
struct flow_key {
	struct address remote, local;
	u16 remote_port, local_port;
	u32 direction;
};

#define LIVE 1      // there is a socket of the server: packets need only be translated
#define REDIRECT 2  // what leaves for another next hop than the balancer's must be redirected
#define CLOSING 4   // the balancer has sent its FIN

// Who stands in the place of `remote` on the other side.
struct flow {
	struct address remote;
	u16 remote_port, flags;
	u32 ifindex;  // where the balancer's packets come in
	u16 born;     // the lower half of the seconds of CLOCK_MONOTONIC
	u16 mac[3];   // whom the balancer's packets come from
};

struct listener_key {
	struct address local;
	u16 port, pad;
};

struct target {
	struct address local;
	u16 port;  // 0: there is none for this family
	u16 pad;
};

#define RULE_ALLOW 1
#define RULE_TLV 2  // looks at fields that only user space knows

struct rule {
	u32 list;  // list of networks that the client is in; 0 for any
	u32 flags;
};

#define VERIFY_CHECKSUM 1
#define DROP_DUPLICATE 2
#define DRAINING 4

struct listener {
	struct target target[2];  // of IPv4 and IPv6 clients
	u32 trusted;              // list of networks; 0 for everybody
	u32 flags;
	u32 slot;                 // seconds: a header may come after one to two of them
	u32 header_limit;
	u32 rules;
	struct rule rule[MAX_RULES];
};

#define WINDOW_SCALING 1
#define TIMESTAMPS 2
#define SACK 4
#define ECN 8

struct settings {
	u64 key[2];         // of the cookies
	u32 own;            // list of this host's addresses
	u32 options;        // what the host's TCP may agree to
	u32 window_scale;   // of the server's sockets
	u32 window;         // in the SYN-ACK
};

struct network_key {
	u32 prefix_len;
	u32 list;
	struct address address;
};

enum counter {
	SYN_ANSWERED,
	SYN_PASSED,
	ASSIGNED,
	ASSIGNED_LOCAL,
	REPEATED,
	PORT_CHANGED,
	FALL_BACK,
	ACK_DROPPED,
	NOT_ALLOWED,
	CLAIMED,
	BAD_COOKIE,
	DUPLICATE,
	NOT_YET,
	FLOWS_FULL,
	UNREADABLE,
	FAILED,
	TO_SERVER_PACKETS,
	TO_CLIENT_PACKETS,
	ICMP_PACKETS,
	ENDED,
	COUNTERS,
};

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(map_flags, BPF_F_NO_PREALLOC); __uint(max_entries, 1 << 18);
	__type(key, struct flow_key); __type(value, struct flow); } flows SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct listener_key); __type(value, struct listener); } listeners SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, NETWORKS); __uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network_key); __type(value, u8); } networks SEC(".maps");
// A bit for each port that a listener has: most of what passes the interface needs no more than this.
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1024); __type(key, u32); __type(value, u64); } ports SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct settings); } settings SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, COUNTERS); __type(key, u32); __type(value, u64); } counters SEC(".maps");

// Where a loop over bytes is. What lies in a map is unknown to the verifier, which then looks at one turn instead of all.
struct walk {
	u32 at, end, fault, done;
	u32 field, number, digits, parts, gap;
	u32 unknown, port;
	u32 crc_at, crc;
	u8 address[16], source[16];
};

// What a TCP header offers or agrees to.
struct options {
	u32 tsval, tsecr;
	u16 mss;
	u8 window_scale, has_scale, sack, timestamps;
	u8 foreign;  // one that only the kernel itself can deal with: MD5, AO, Fast Open, Multipath TCP
};

enum claim { CLAIM_ODD, CLAIM_CLIENT, CLAIM_LOCAL };

// What a PROXY header says.
struct header {
	struct address client;
	u16 port;  // in network order
	u16 claim;
	u32 length;
	u32 has_tlvs;
};

// What does not fit onto the stack. Programs of one CPU do not interrupt each other.
struct scratch {
	u8 option_bytes[64];
	u8 bytes[1024];
	struct walk walk;
	struct options options;
	struct header header;
};

// A function that is verified by itself, for all arguments of its types.
#define ALONE __attribute__((noinline))
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct scratch); } scratches SEC(".maps");

// Connections that have ended lately.
#define ENDINGS 16
struct endings {
	u32 next;
	struct flow_key key[ENDINGS];
};
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct endings); } endings SEC(".maps");

static __always_inline void count(u32 which)
{
	u64 *value = bpf_map_lookup_elem(&counters, &which);
	if (value)
		(*value)++;
}

static __always_inline struct scratch *get_scratch(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&scratches, &zero);
}

static __always_inline struct settings *get_settings(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline int is_same(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

static __always_inline int is_listed(u32 list, const struct address *address)
{
	// Each family has a list of its own, or ::/0 would hold IPv4 as well.
	u32 v6 = address->word[0] || address->word[1] || address->word[2] != bpf_htonl(0xffff);
	struct network_key key = { .prefix_len = 160, .list = list << 1 | v6, .address = *address };
	return bpf_map_lookup_elem(&networks, &key) != 0;
}
