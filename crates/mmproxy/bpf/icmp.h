// SPDX-License-Identifier: MIT OR GPL-2.0-only
// ICMP errors quote the packet that they are about. Those that come in quote what we sent to the balancer and shall find the
// server's socket; those that go out quote what the balancer's packet had become, and shall be understood by it.

#define ICMP_HEADER 8

// RFC 792: destination unreachable, time exceeded, parameter problem. RFC 4443: errors have types below 128.
static __always_inline int is_error(u8 type, int v6)
{
	return v6 ? type < 128 : type == 3 || type == 11 || type == 12;
}

struct quote {
	struct flow_key key;
	u32 address_at, port_at;  // of the remote side within the quoted packet
};

// Reads addresses and ports of the quoted segment. A first fragment without options or extension headers only.
static __always_inline int read_quote(struct __sk_buff *skb, struct quote *q, u32 at, u32 direction, u32 v6)
{
	// What came in quotes what we sent: the remote side is where it went to.
	int is_destination = direction == TO_SERVER;
	u16 ports[2];
	struct address *remote = &q->key.remote, *local = &q->key.local;
	if (v6) {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(remote, is_destination ? &ip.daddr : &ip.saddr, 16);
		__builtin_memcpy(local, is_destination ? &ip.saddr : &ip.daddr, 16);
		q->address_at = at + (is_destination ? 24 : 8);
		at += sizeof(ip);
	} else {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl != 5 || ip.protocol != IPPROTO_TCP ||
		    ip.frag_off & bpf_htons(0x1fff))
			return 0;
		*remote = (struct address){ { 0, 0, MAPPED, is_destination ? ip.daddr : ip.saddr } };
		*local = (struct address){ { 0, 0, MAPPED, is_destination ? ip.saddr : ip.daddr } };
		q->address_at = at + (is_destination ? 16 : 12);
		at += sizeof(ip);
	}
	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	q->key.remote_port = ports[is_destination];
	q->key.local_port = ports[!is_destination];
	q->key.direction = direction;
	q->port_at = at + (is_destination ? 2 : 0);
	return 1;
}

// Replaces an address, and its part in the checksum at `sum`.
static __always_inline void replace_address(struct __sk_buff *skb, u32 at, u32 sum, const struct address *old,
					    const struct address *new, u32 v6, u64 flags)
{
	if (!v6) {
		u32 from = old->word[3], to = new->word[3];
		if (sum)
			bpf_l4_csum_replace(skb, sum, from, to, 4 | flags);
		bpf_skb_store_bytes(skb, at, &to, 4, 0);
		return;
	}
	for (u32 i = 0; i < 4; i++)
		bpf_l4_csum_replace(skb, sum, old->word[i], new->word[i], 4 | flags);
	bpf_skb_store_bytes(skb, at, new, 16, 0);
}

ALONE int translate_quote(struct __sk_buff *skb, u32 direction, u32 v6)
{
	u32 icmp = L3 + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)), quoted = icmp + ICMP_HEADER;
	u32 sum = icmp + 2;
	struct quote q = {};
	u8 type;
	if (bpf_skb_load_bytes(skb, icmp, &type, 1) || !is_error(type, v6) || !read_quote(skb, &q, quoted, direction, v6))
		return TC_ACT_UNSPEC;
	struct flow *flow = bpf_map_lookup_elem(&flows, &q.key);
	if (!flow)
		return TC_ACT_UNSPEC;
	struct address old = q.key.remote, new = flow->remote;
	u16 port = flow->remote_port;
	u32 redirect = flow->flags & REDIRECT, ifindex = flow->ifindex;
	replace_address(skb, q.address_at, v6 ? sum : 0, &old, &new, v6, 0);
	// With IPv4 the sum of the quoted header changes against its address, so that the error's sees the port only.
	if (!v6)
		bpf_l3_csum_replace(skb, quoted + 10, old.word[3], new.word[3], 4);
	bpf_l4_csum_replace(skb, sum, q.key.remote_port, port, 2);
	bpf_skb_store_bytes(skb, q.port_at, &port, 2, 0);
	count(ICMP_PACKETS);
	if (direction == TO_SERVER)
		return TC_ACT_OK;
	// The error itself goes to the client: it is for the balancer.
	if (v6) {
		replace_address(skb, L3 + 24, sum, &old, &new, v6, BPF_F_PSEUDO_HDR);
	} else {
		bpf_l3_csum_replace(skb, L3 + 10, old.word[3], new.word[3], 4);
		replace_address(skb, L3 + 16, 0, &old, &new, v6, 0);
	}
	return redirect ? bpf_redirect_neigh(ifindex, 0, 0, 0) : TC_ACT_OK;
}
