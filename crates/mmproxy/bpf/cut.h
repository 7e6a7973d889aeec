// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Taking the header out of the first data segment: what is behind it moves up, and SEQ says so.

// Linux 6.12 learns no bounds of a variable from two comparisons that clang makes one, of a difference, nor what clang infers from an
// earlier one: hence barrier_var.

// The sum of `n` bytes of the header, `n` <= MAX_HEADER; what is behind them in the buffer is overwritten.
static __always_inline u32 sum_of_header(struct scratch *s, u32 n)
{
	u32 end = n;
	barrier_var(end);
	s->bytes[end & 1023] = s->bytes[(end + 1) & 1023] = s->bytes[(end + 2) & 1023] = 0;
	u32 whole = (n + 3) & ~3U, first = whole > 256 ? 256 : whole, second = whole - first;
	u64 sum = 0;
	// Kernels before 6.13 sum 512 bytes at most.
	barrier_var(first);
	if (first <= 256)
		sum += (u32)bpf_csum_diff(0, 0, (void *)s->bytes, first, 0);
	barrier_var(second);
	if (second <= 288)
		sum += (u32)bpf_csum_diff(0, 0, (void *)(s->bytes + 256), second, 0);
	return fold(sum);
}

static __always_inline u64 pseudo_sum(const struct address *a, const struct address *b, int v6, u32 length)
{
	return sum_of_address(a, v6) + sum_of_address(b, v6) + bpf_htons(IPPROTO_TCP) + bpf_htons(length);
}

// The sum of the segment without its header of `n` bytes, from `to` on the way to the server: RFC 1624. Where an odd number
// of bytes goes, all that follow change between high and low.
static __always_inline u16 cut_sum(struct scratch *s, struct packet *p, const struct flow *to, const struct tcphdr *old,
				   const struct tcphdr *new, u32 n)
{
	u32 length = p->doff * 4 + p->payload, options = 0;
	struct tcphdr before = *old;
	before.check = 0;
	u32 option_bytes = (p->doff * 4 - 20) & 63;
	barrier_var(option_bytes);
	if (option_bytes <= 40)
		options = fold((u32)bpf_csum_diff(0, 0, (void *)s->option_bytes, option_bytes, 0));
	u64 heads = pseudo_sum(&p->key.remote, &p->key.local, p->v6, length) +
		    (u32)bpf_csum_diff(0, 0, (void *)&before, sizeof(before), 0) + options;
	u64 rest = (u16)~old->check + (u64)(u16)~fold(heads) + (u16)~sum_of_header(s, n);
	u16 folded = fold(rest);
	if (n & 1)
		folded = folded << 8 | folded >> 8;
	u64 sum = pseudo_sum(&to->remote, &p->key.local, p->v6, length - n) +
		  (u32)bpf_csum_diff(0, 0, (void *)new, sizeof(*new), 0) + options + folded;
	return ~fold(sum);
}

// With a sum that is still to be completed, the kernel must be made to forget where from: so many bytes are needed.
static __always_inline int can_cut(struct __sk_buff *skb, struct packet *p, u32 n)
{
	return p->payload <= 65000 && (summed(skb) != CHECKSUM_PARTIAL || n + sizeof(struct tcphdr) > p->l4);
}

ALONE int cut(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct flow *to __arg_nonnull, u32 n)
{
	struct scratch *s = get_scratch();
	struct tcphdr tcp, new;
	u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	u32 total = p->l4 - L3 + p->doff * 4 + p->payload - n;
	if (n < 15)
		return -1;
	barrier_var(n);
	if (!s || n > MAX_HEADER || bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof(tcp)))
		return -1;
	new = tcp;
	new.source = to->remote_port;
	new.seq = bpf_htonl(p->seq + n);
	new.check = 0;
	if (summed(skb) == CHECKSUM_PARTIAL) {
		// Removing more than lies before the segment makes the kernel forget the sum, which is right: the bytes never left
		// the host.
		s32 spare = sizeof(tcp);
		if (bpf_skb_adjust_room(skb, -(s32)n - spare, BPF_ADJ_ROOM_NET, flags) ||
		    bpf_skb_adjust_room(skb, spare, BPF_ADJ_ROOM_NET, flags))
			return -1;
		bpf_csum_level(skb, BPF_CSUM_LEVEL_INC);
	} else {
		new.check = cut_sum(s, p, to, &tcp, &new, n);
		if (bpf_skb_adjust_room(skb, -(s32)n, BPF_ADJ_ROOM_NET, flags))
			return -1;
	}
	if (p->v6) {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, L3, &ip, sizeof(ip)))
			return -1;
		ip.payload_len = bpf_htons(total - sizeof(ip));
		__builtin_memcpy(&ip.saddr, &to->remote, 16);
		bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
	} else {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, L3, &ip, sizeof(ip)))
			return -1;
		ip.tot_len = bpf_htons(total);
		ip.saddr = to->remote.word[3];
		ip.check = 0;
		ip.check = ~fold((u32)bpf_csum_diff(0, 0, (void *)&ip, sizeof(ip), 0));
		bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
	}
	bpf_skb_store_bytes(skb, p->l4, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH);
	u32 options = (p->doff * 4 - 20) & 63;
	if (options < 4)
		return 0;
	barrier_var(options);
	if (options <= 40)
		bpf_skb_store_bytes(skb, p->l4 + sizeof(new), s->option_bytes, options, BPF_F_RECOMPUTE_CSUM);
	return 0;
}
