// SPDX-License-Identifier: MIT OR GPL-2.0-only
// SYN cookies: what was agreed with the SYN is in our initial sequence number, under a SipHash over the connection and the
// time. Nothing is stored until a header has come.
//
//     | 11 bits: SipHash-2-4 | 13: more of it, and the balancer's number | 3: MSS | 4: window scale, 15 for none | 1: SACK |
//
// So a later segment is known to be of a connection whose first one has not come, and the balancer will repeat that. The 13 bits are
// those above the lowest three of a sum: they differ for numbers that are 8 to 65 528 apart. That is all of a SYN-ACK's window but its
// first and last bytes, and the shortest header has 15: a later segment is not taken for the first.

const volatile u16 mss_values[8] = { 536, 1220, 1360, 1400, 1440, 1460, 8940, 65460 };

#define ROTATE(x, b) ((x) << (b) | (x) >> (64 - (b)))
#define SIP_ROUND                                                                                                      \
	do {                                                                                                           \
		v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32);                                          \
		v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2;                                                               \
		v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0;                                                               \
		v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32);                                          \
	} while (0)
#define SIP_WORDS 6

// SipHash-2-4 (Aumasson, Bernstein 2012) over the connection, the slot and what is agreed. One copy of its loop, as a connection meets this code
// when it is cold.
ALONE u64 cookie_hash(const struct settings *s __arg_nonnull, const struct packet *p __arg_nonnull, u32 slot, u32 bits)
{
	const struct flow_key *k = &p->key;
	u64 v0 = s->key[0] ^ 0x736f6d6570736575ULL, v1 = s->key[1] ^ 0x646f72616e646f6dULL;
	u64 v2 = s->key[0] ^ 0x6c7967656e657261ULL, v3 = s->key[1] ^ 0x7465646279746573ULL;
	u64 words[SIP_WORDS] = {
		(u64)k->remote.word[0] << 32 | k->remote.word[1],
		(u64)k->local.word[0] << 32 | k->local.word[1],
		(u64)k->remote.word[2] << 32 | k->local.word[2],
		(u64)k->remote.word[3] << 32 | k->local.word[3],
		(u64)k->remote_port << 48 | (u64)k->local_port << 32 | slot,
		(u64)(p->v6 ? 36 : 20) << 56 | bits,
	};
#pragma clang loop unroll(disable)
	for (u32 i = p->v6 ? 0 : 3; i < SIP_WORDS; i++) {
		v3 ^= words[i];
#pragma clang loop unroll(disable)
		for (u32 round = 0; round < 2; round++)
			SIP_ROUND;
		v0 ^= words[i];
	}
	v2 ^= 0xff;
#pragma clang loop unroll(disable)
	for (u32 round = 0; round < 4; round++)
		SIP_ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

#define CONNECTION_BITS 0xffe00000U
#define NUMBER_BITS 0x001fff00U

// With the balancer's initial sequence number. Who does not know the hash knows none of the bits.
static __always_inline u32 whole_hash(const struct settings *s, const struct packet *p, u32 isn, u32 slot, u32 bits)
{
	u64 hash = cookie_hash(s, p, slot, bits);
	u32 number = (u32)(hash >> 32) + isn;
	return ((u32)hash & CONNECTION_BITS) | (number << 5 & NUMBER_BITS);
}

static __always_inline u32 seconds(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000;
}

// The low byte of our initial sequence number, and what is agreed beside it.
#define AGREED_TIMESTAMPS 0x100
#define AGREED_ECN 1  // in the lowest bit of our first timestamp

static __always_inline u32 make_cookie(const struct settings *s, const struct packet *p, u32 slot_length, u32 bits)
{
	u32 slot = seconds() / (slot_length ? slot_length : 1);
	return whole_hash(s, p, p->seq, slot, bits) | (bits & 0xff);
}

// Whether `p`, whose first byte is the balancer's first one, answers a SYN-ACK of this or the last slot.
static __always_inline int is_cookie_right(const struct settings *s, const struct packet *p, u32 slot_length, int timestamps)
{
	u32 isn = p->ack - 1, bits = (isn & 0xff) | (timestamps ? AGREED_TIMESTAMPS : 0);
	u32 slot = seconds() / (slot_length ? slot_length : 1);
	if (whole_hash(s, p, p->seq - 1, slot, bits) == (isn & ~0xffU))
		return 1;
	return whole_hash(s, p, p->seq - 1, slot - 1, bits) == (isn & ~0xffU);
}

// Whether `p` acknowledges a SYN-ACK of this or the last slot, whatever its own number is. One in 1024 others seems to, for two slots:
// then it gets its RST.
static __always_inline int is_of_a_handshake(const struct settings *s, const struct packet *p, u32 slot_length, int timestamps)
{
	u32 isn = p->ack - 1, bits = (isn & 0xff) | (timestamps ? AGREED_TIMESTAMPS : 0);
	u32 slot = seconds() / (slot_length ? slot_length : 1);
	if (((u32)cookie_hash(s, p, slot, bits) & CONNECTION_BITS) == (isn & CONNECTION_BITS))
		return 1;
	return ((u32)cookie_hash(s, p, slot - 1, bits) & CONNECTION_BITS) == (isn & CONNECTION_BITS);
}

struct byte_walk { struct scratch *scratch; };

static __always_inline u32 word_at(const struct scratch *s, u32 at)
{
	return (u32)s->option_bytes[at & 63] << 24 | (u32)s->option_bytes[(at + 1) & 63] << 16 | (u32)s->option_bytes[(at + 2) & 63] << 8 |
	       s->option_bytes[(at + 3) & 63];
}

// RFC 9293 3.1, RFC 7323, RFC 2018
static long read_option(u32 index, struct byte_walk *walk)
{
	struct scratch *s = walk->scratch;
	struct options *o = &s->options;
	u32 at = s->walk.at;
	if (at >= s->walk.end)
		return 1;
	u8 kind = s->option_bytes[at & 63], length = s->option_bytes[(at + 1) & 63];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		s->walk.at = at + 1;
		return 0;
	}
	if (length < 2 || at + length > s->walk.end)
		return 1;
	if (kind == 2 && length == 4) {
		o->mss = word_at(s, at) & 0xffff;
	} else if (kind == 3 && length == 3) {
		u8 scale = s->option_bytes[(at + 2) & 63];
		o->window_scale = scale > 14 ? 14 : scale;
		o->has_scale = 1;
	} else if (kind == 4 && length == 2) {
		o->sack = 1;
	} else if (kind == 8 && length == 10) {
		o->timestamps = 1;
		o->tsval = word_at(s, at + 2);
		o->tsecr = word_at(s, at + 6);
	} else if (kind == 19 || kind == 29 || kind == 30 || kind == 34) {
		o->foreign = 1;
	}
	s->walk.at = at + length;
	return 0;
}

// Into the scratch.
ALONE int read_options(struct __sk_buff *skb, struct packet *p __arg_nonnull)
{
	struct scratch *s = get_scratch();
	u32 length = p->doff * 4 - 20;
	if (!s)
		return -1;
	__builtin_memset(&s->options, 0, sizeof(s->options));
	s->options.mss = p->v6 ? 1220 : 536;
	if (length == 0)
		return 0;
	if (length > 40 || bpf_skb_load_bytes(skb, p->l4 + 20, s->option_bytes, length))
		return -1;
	// RFC 7323, appendix A: what most segments have.
	if (length == 12 && word_at(s, 0) == 0x0101080a) {
		s->options.timestamps = 1;
		s->options.tsval = word_at(s, 4);
		s->options.tsecr = word_at(s, 8);
		return 0;
	}
	struct byte_walk walk = { .scratch = s };
	s->walk.at = 0;
	s->walk.end = length;
	bpf_loop(40, read_option, &walk, 0);
	return 0;
}
