// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Reading a TCP packet, checksums, and the translation of addresses.

struct sk_buff { unsigned char ip_summed : 2; } __attribute__((preserve_access_index));
extern void *bpf_cast_to_kern_ctx(void *) __ksym;

// linux/skbuff.h
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3
#define L3 ETH_HLEN
#define MAPPED bpf_htonl(0xffff)

static __always_inline u32 summed(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

struct packet {
	struct flow_key key;  // without its direction
	u32 l4;               // where TCP begins
	u32 seq, ack;
	u32 payload;          // bytes
	u8 v6, doff, flags, tos;
};

#define FIN 1
#define SYN 2
#define RST 4
#define ACK 16
#define ECE 64
#define CWR 128

enum kind { NOT_OURS, PLAIN, ODD, ICMP };

static __always_inline u16 fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline u64 sum_of_address(const struct address *address, int v6)
{
	u64 sum = address->word[3];
	if (v6)
		sum += (u64)address->word[0] + address->word[1] + address->word[2];
	return sum;
}

static __always_inline int is_our_port(u16 port)
{
	u32 host = bpf_ntohs(port), word = host >> 6;
	u64 *bits = bpf_map_lookup_elem(&ports, &word);
	return bits && (*bits >> (host & 63) & 1);
}

static __always_inline int has_linear(struct __sk_buff *skb, u32 length)
{
	if ((void *)(long)skb->data + length <= (void *)(long)skb->data_end)
		return 1;
	if (skb->len < length || bpf_skb_pull_data(skb, length))
		return 0;
	return (void *)(long)skb->data + length <= (void *)(long)skb->data_end;
}

// The ports of a packet with IP options, or of a first fragment; others have none, and are nothing without the first.
static __always_inline int read_odd(struct __sk_buff *skb, struct packet *p, u32 at, u16 fragment, u32 direction)
{
	u16 ports[2];
	if (fragment & bpf_htons(0x1fff) || bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return NOT_OURS;
	p->key.remote_port = ports[direction != TO_SERVER];
	p->key.local_port = ports[direction == TO_SERVER];
	p->key.direction = direction;
	return is_our_port(p->key.local_port) ? ODD : NOT_OURS;
}

// Fills in addresses and ports as the side `direction` sees them. PLAIN: no IP options or extension headers, no fragment.
static __always_inline int read_packet(struct __sk_buff *skb, struct packet *p, u32 direction)
{
	int v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	u32 l4 = L3 + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	// A tag is the business of the VLAN's own interface.
	if ((!v6 && skb->protocol != bpf_htons(ETH_P_IP)) || skb->vlan_present)
		return NOT_OURS;
	if (!has_linear(skb, l4 + sizeof(struct tcphdr)))
		return NOT_OURS;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp;
	u32 total;
	if (v6) {
		struct ipv6hdr *ip = data + L3;
		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end || ip->nexthdr != IPPROTO_TCP)
			return (void *)(ip + 1) <= end && ip->nexthdr == IPPROTO_ICMPV6 ? ICMP : NOT_OURS;
		total = bpf_ntohs(ip->payload_len);
		total = total ? total + sizeof(*ip) : skb->len - L3;
		struct address *source = (void *)&ip->saddr, *destination = (void *)&ip->daddr;
		p->key.remote = direction == TO_SERVER ? *source : *destination;
		p->key.local = direction == TO_SERVER ? *destination : *source;
		p->tos = bpf_ntohs(*(u16 *)ip) >> 4;
	} else {
		struct iphdr *ip = data + L3;
		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end || ip->protocol != IPPROTO_TCP)
			return (void *)(ip + 1) <= end && ip->protocol == IPPROTO_ICMP && ip->ihl == 5 ? ICMP : NOT_OURS;
		u32 source = ip->saddr, destination = ip->daddr;
		p->key.remote = (struct address){ { 0, 0, MAPPED, direction == TO_SERVER ? source : destination } };
		p->key.local = (struct address){ { 0, 0, MAPPED, direction == TO_SERVER ? destination : source } };
		if (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
			return read_odd(skb, p, L3 + ip->ihl * 4, ip->frag_off, direction);
		total = bpf_ntohs(ip->tot_len);
		total = total ? total : skb->len - L3;
		p->tos = ip->tos;
	}
	p->key.remote_port = direction == TO_SERVER ? tcp->source : tcp->dest;
	p->key.local_port = direction == TO_SERVER ? tcp->dest : tcp->source;
	p->key.direction = direction;
	if (!is_our_port(p->key.local_port))
		return NOT_OURS;
	p->v6 = v6;
	p->l4 = l4;
	p->doff = tcp->doff;
	p->flags = ((u8 *)tcp)[13];
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack_seq);
	u32 headers = l4 - L3 + p->doff * 4;
	if (p->doff < 5 || total < headers)
		return NOT_OURS;
	p->payload = total - headers;
	return PLAIN;
}

// Puts `flow` in the place of the remote side. `change` and `ports` are what the checksum gains.
static __always_inline int translate(struct __sk_buff *skb, struct packet *p, const struct flow *flow, int direction)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u64 old = sum_of_address(&p->key.remote, p->v6), new = sum_of_address(&flow->remote, p->v6);
	u64 change = (u16)~fold(old) + (u64)fold(new);
	u64 all = change + (u16)~p->key.remote_port + flow->remote_port;
	u32 kind = summed(skb);
	struct tcphdr *tcp;
	if (p->v6) {
		struct ipv6hdr *ip = data + L3;
		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return TC_ACT_SHOT;
		if (direction == TO_SERVER)
			*(struct address *)&ip->saddr = flow->remote;
		else
			*(struct address *)&ip->daddr = flow->remote;
	} else {
		struct iphdr *ip = data + L3;
		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return TC_ACT_SHOT;
		ip->check = ~fold((u16)~ip->check + change);
		if (direction == TO_SERVER)
			ip->saddr = flow->remote.word[3];
		else
			ip->daddr = flow->remote.word[3];
	}
	// The sum of a packet that is still to be completed covers the addresses only.
	if (kind == CHECKSUM_PARTIAL)
		tcp->check = fold((u64)tcp->check + change);
	else
		tcp->check = ~fold((u16)~tcp->check + all);
	if (direction == TO_SERVER)
		tcp->source = flow->remote_port;
	else
		tcp->dest = flow->remote_port;
	// With IPv4 the sums of header and segment change against each other by the addresses; with IPv6 nothing is left over.
	if (kind == CHECKSUM_COMPLETE && !p->v6)
		bpf_csum_update(skb, (u16)~fold(change));
	return TC_ACT_OK;
}
