// SPDX-License-Identifier: MIT OR GPL-2.0-only
// The SYN-ACK, and handing a finished handshake to the kernel.

struct sock { int unused; };
// net/tcp.h: what the kernel is told of a handshake that it has not seen.
struct bpf_tcp_req_attrs {
	u32 rcv_tsval, rcv_tsecr;
	u16 mss;
	u8 rcv_wscale, snd_wscale, ecn_ok, wscale_ok, sack_ok, tstamp_ok, usec_ts_ok, reserved[3];
};
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;

// net/tcp_states.h
#define TCP_TIME_WAIT 6
#define TCP_LISTEN 10
#define CURRENT_NETNS (-1)

static __always_inline struct bpf_sock *look_up(struct __sk_buff *skb, const struct flow_key *e, int v6)
{
	struct bpf_sock_tuple tuple = {};
	if (v6) {
		__builtin_memcpy(tuple.ipv6.saddr, &e->remote, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &e->local, 16);
		tuple.ipv6.sport = e->remote_port;
		tuple.ipv6.dport = e->local_port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = e->remote.word[3];
	tuple.ipv4.daddr = e->local.word[3];
	tuple.ipv4.sport = e->remote_port;
	tuple.ipv4.dport = e->local_port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), CURRENT_NETNS, 0);
}

// The state of whatever socket there is for these endpoints, 0 for none.
ALONE int socket_state(struct __sk_buff *skb, struct flow_key *e __arg_nonnull, int v6)
{
	struct bpf_sock *sk = look_up(skb, e, v6);
	if (!sk)
		return 0;
	int state = sk->state;
	bpf_sk_release(sk);
	return state;
}

// Hands the connection of this packet to the socket that listens at `e`, with what was agreed in our SYN-ACK.
ALONE int assign(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct flow_key *e __arg_nonnull)
{
	struct settings *s = get_settings();
	struct scratch *scratch = get_scratch();
	if (!s || !scratch)
		return -1;
	struct options *o = &scratch->options;
	u32 bits = p->ack - 1;
	struct bpf_tcp_req_attrs attrs = {};
	u32 scale = bits >> 1 & 15;
	attrs.mss = mss_values[bits >> 5 & 7];
	attrs.sack_ok = bits & 1;
	attrs.wscale_ok = scale != 15;
	attrs.snd_wscale = scale != 15 ? scale : 0;
	attrs.rcv_wscale = scale != 15 ? s->window_scale : 0;
	attrs.tstamp_ok = o->timestamps;
	attrs.rcv_tsval = o->tsval;
	attrs.rcv_tsecr = o->tsecr;
	attrs.ecn_ok = o->timestamps && (o->tsecr & AGREED_ECN);
	struct bpf_sock *found = look_up(skb, e, p->v6);
	if (!found)
		return -1;
	if (found->state != TCP_LISTEN) {
		bpf_sk_release(found);
		return -1;
	}
	struct sock *sk = (struct sock *)bpf_skc_to_tcp_sock(found);
	int result = sk ? bpf_sk_assign_tcp_reqsk(skb, sk, &attrs, sizeof(attrs)) : -1;
	bpf_sk_release(found);
	return result;
}

struct answer { struct tcphdr tcp; u32 options[5]; };

static __always_inline u32 agreed(const struct settings *s, const struct options *o)
{
	u32 bits = 0;
	for (u32 i = 1; i < 8; i++)
		bits = o->mss >= mss_values[i] ? i << 5 : bits;
	bits |= (o->has_scale && s->options & WINDOW_SCALING ? o->window_scale & 15 : 15) << 1;
	bits |= o->sack && s->options & SACK ? 1 : 0;
	bits |= o->timestamps && s->options & TIMESTAMPS ? AGREED_TIMESTAMPS : 0;
	return bits;
}

// Always 40 bytes of TCP header, so that one checksum and one length serve all.
static __always_inline void fill_answer(struct answer *r, struct packet *p, const struct settings *s, const struct options *o,
					u32 bits, u32 slot, u32 own_mss)
{
	int has_scale = (bits >> 1 & 15) != 15, timestamps = bits & AGREED_TIMESTAMPS, sack = bits & 1;
	// RFC 3168 6.1.1: a SYN with ECE and CWR asks.
	u32 ecn = timestamps && s->options & ECN && (p->flags & (ECE | CWR)) == (ECE | CWR);
	r->tcp.source = p->key.local_port;
	r->tcp.dest = p->key.remote_port;
	r->tcp.seq = bpf_htonl(make_cookie(s, p, slot, bits));
	r->tcp.ack_seq = bpf_htonl(p->seq + 1);
	r->tcp.doff = 10;
	r->tcp.syn = r->tcp.ack = 1;
	r->tcp.ece = ecn;
	r->tcp.window = bpf_htons(s->window);
	r->options[0] = bpf_htonl(2 << 24 | 4 << 16 | own_mss);
	r->options[1] = bpf_htonl(has_scale ? 1 << 24 | 3 << 16 | 3 << 8 | s->window_scale : 0x01010101);
	r->options[2] = bpf_htonl((sack ? 0x0402 : 0x0101) << 16 | (timestamps ? 8 << 8 | 10 : 0x0101));
	u32 now = bpf_ktime_get_ns() / 1000000;
	r->options[3] = timestamps ? bpf_htonl((now & ~AGREED_ECN) | (ecn ? AGREED_ECN : 0)) : 0x01010101;
	r->options[4] = timestamps ? bpf_htonl(o->tsval) : 0x01010101;
}

ALONE int answer_syn(struct __sk_buff *skb, struct packet *p __arg_nonnull, u32 slot)
{
	struct settings *s = get_settings();
	struct scratch *scratch = get_scratch();
	struct answer r = {};
	u32 mtu = 0, header = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr), partial = summed(skb) == CHECKSUM_PARTIAL;
	if (!s || !scratch)
		return TC_ACT_SHOT;
	bpf_check_mtu(skb, 0, &mtu, 0, 0);
	u32 own_mss = mtu > header + 20 + 536 ? mtu - header - 20 : 536;
	fill_answer(&r, p, s, &scratch->options, agreed(s, &scratch->options), slot, own_mss > 65535 ? 65535 : own_mss);
	u64 sum = sum_of_address(&p->key.remote, p->v6) + sum_of_address(&p->key.local, p->v6) + bpf_htons(IPPROTO_TCP) +
		  bpf_htons(sizeof(r));
	// Where the sum is still to be completed, the field has that of the addresses.
	r.tcp.check = partial ? fold(sum) : ~fold(sum + (u32)bpf_csum_diff(0, 0, (void *)&r, sizeof(r), 0));
	if (bpf_skb_change_tail(skb, L3 + header + sizeof(r), 0) || !has_linear(skb, L3 + header + sizeof(r)))
		return TC_ACT_SHOT;
	struct ethhdr *ethernet = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	u8 mac[ETH_ALEN];
	if ((void *)(ethernet + 1) > end)
		return TC_ACT_SHOT;
	__builtin_memcpy(mac, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, mac, ETH_ALEN);
	if (p->v6) {
		struct { struct ipv6hdr ip; struct answer answer; } *out = (void *)(ethernet + 1);
		struct ipv6hdr ip = { .version = 6, .nexthdr = IPPROTO_TCP, .hop_limit = 64, .payload_len = bpf_htons(sizeof(r)) };
		__builtin_memcpy(&ip.saddr, &p->key.local, 16);
		__builtin_memcpy(&ip.daddr, &p->key.remote, 16);
		if ((void *)(out + 1) > end)
			return TC_ACT_SHOT;
		out->ip = ip;
		out->answer = r;
	} else {
		struct { struct iphdr ip; struct answer answer; } *out = (void *)(ethernet + 1);
		struct iphdr ip = { .version = 4, .ihl = 5, .tot_len = bpf_htons(sizeof(ip) + sizeof(r)), .ttl = 64,
				    .frag_off = bpf_htons(0x4000), .protocol = IPPROTO_TCP, .saddr = p->key.local.word[3],
				    .daddr = p->key.remote.word[3] };
		ip.check = ~fold((u32)bpf_csum_diff(0, 0, (void *)&ip, sizeof(ip), 0));
		if ((void *)(out + 1) > end)
			return TC_ACT_SHOT;
		out->ip = ip;
		out->answer = r;
	}
	bpf_set_hash_invalid(skb);
	count(SYN_ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}
