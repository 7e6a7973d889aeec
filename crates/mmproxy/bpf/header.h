// SPDX-License-Identifier: MIT OR GPL-2.0-only
// The PROXY protocol header, haproxy.org's proxy-protocol.txt. Only what is plainly right is taken here; all else is ODD and
// for the parser in user space to judge.

static __always_inline u32 crc_step(u32 crc, u8 byte)
{
	crc ^= byte;
	for (int i = 0; i < 8; i++)
		crc = crc >> 1 ^ (crc & 1) * 0x82f63b78;
	return crc;
}

// CRC32C with its own field taken as zero.
static long crc_byte(u32 index, struct byte_walk *walk)
{
	struct scratch *s = walk->scratch;
	if (index >= s->walk.end)
		return 1;
	u8 byte = index - s->walk.crc_at < 4 ? 0 : s->bytes[index & 1023];
	s->walk.crc = crc_step(s->walk.crc, byte);
	return 0;
}

// Specification 2.2: none may overrun; a CRC32C has four bytes and is there once; SSL's own fields follow five bytes.
static long read_tlv(u32 index, struct byte_walk *walk)
{
	struct scratch *s = walk->scratch;
	u32 at = s->walk.at;
	if (at == s->walk.end)
		return 1;
	u32 length = (u32)s->bytes[(at + 1) & 1023] << 8 | s->bytes[(at + 2) & 1023];
	u8 kind = s->bytes[at & 1023];
	s->walk.fault = 1;
	if (at + 3 + length > s->walk.end)
		return 1;
	if (kind == 0x03 && (length != 4 || s->walk.crc_at))
		return 1;
	if (kind == 0x03)
		s->walk.crc_at = at + 3;
	if (kind == 0x05 && length > 128)
		return 1;
	// SSL: fields within the field are left to user space.
	if (kind == 0x20 && length != 5)
		return 1;
	s->walk.fault = 0;
	s->walk.at = at + 3 + length;
	return 0;
}

ALONE int are_tlvs_right(u32 at, u32 end, u32 verify)
{
	struct scratch *s = get_scratch();
	if (!s)
		return 0;
	struct byte_walk walk = { .scratch = s };
	s->walk.at = at;
	s->walk.end = end;
	s->walk.fault = s->walk.crc_at = 0;
	bpf_loop(MAX_HEADER / 3, read_tlv, &walk, 0);
	if (s->walk.fault || s->walk.at != end)
		return 0;
	u32 field = s->walk.crc_at;
	if (!verify || !field)
		return 1;
	s->walk.crc = ~0U;
	bpf_loop(MAX_HEADER, crc_byte, &walk, 0);
	u32 wanted = (u32)s->bytes[field & 1023] << 24 | (u32)s->bytes[(field + 1) & 1023] << 16 |
		     (u32)s->bytes[(field + 2) & 1023] << 8 | s->bytes[(field + 3) & 1023];
	return wanted == ~s->walk.crc;
}

ALONE int read_v2(u32 available, u32 flags)
{
	struct scratch *s = get_scratch();
	if (!s)
		return 0;
	struct header *h = &s->header;
	u8 *b = s->bytes;
	u32 length = 16 + ((u32)b[14] << 8 | b[15]);
	if (available < 16 || length > available || length > MAX_HEADER)
		return 0;
	h->length = length;
	if (b[12] == 0x20) {
		h->claim = CLAIM_LOCAL;
		return 0;
	}
	if (b[12] != 0x21)
		return 0;
	u32 block = b[13] == 0x11 ? 12 : b[13] == 0x21 ? 36 : 0;
	if ((block == 0 && b[13] != 0) || length < 16 + block)
		return 0;
	h->has_tlvs = length > 16 + block;
	if (h->has_tlvs && !are_tlvs_right(16 + block, length, flags & VERIFY_CHECKSUM))
		return 0;
	if (block == 12) {
		h->client.word[2] = MAPPED;
		__builtin_memcpy(&h->client.word[3], b + 16, 4);
		__builtin_memcpy(&h->port, b + 24, 2);
	} else if (block == 36) {
		__builtin_memcpy(&h->client, b + 16, 16);
		__builtin_memcpy(&h->port, b + 48, 2);
	}
	h->claim = block ? CLAIM_CLIENT : CLAIM_LOCAL;
	return 0;
}

// One line of version 1, byte by byte. Fields: 0 source, 1 destination, 2 source port, 3 destination port.
static __always_inline int is_space(u8 byte) { return byte == ' ' || byte == '\r'; }

static __always_inline int end_of_number(struct walk *w, u32 largest)
{
	return w->digits == 0 || w->number > largest;
}

// Stores a group of an IPv6 address; a gap leaves its place open.
static __always_inline void put_group(struct walk *w)
{
	u32 at = w->parts * 2 & 14;
	w->address[at] = w->number >> 8;
	w->address[(at + 1) & 15] = w->number;
	w->parts++;
}

// Moves the groups behind `::` to the end.
static __always_inline int close_gap(struct walk *w)
{
	if (w->gap == 0)
		return w->parts != 8;
	u32 before = (w->gap - 1) * 2, behind = w->parts * 2 - before;
	if (w->parts > 7)
		return 1;
	for (u32 i = 0; i < 16; i++) {
		u32 from = 15 - i;
		if (i < behind && from >= before) {
			u32 there = (before + behind - 1 - i) & 15;
			u8 byte = w->address[there];
			w->address[there] = 0;
			w->address[from & 15] = byte;
		}
	}
	return 0;
}

static __always_inline int end_of_field(struct walk *w, u8 byte)
{
	if (w->field < 2) {
		if (w->digits)
			put_group(w);
		else if (w->gap == 0 || w->gap - 1 != w->parts)
			return 1;
		if (close_gap(w))
			return 1;
	} else if (end_of_number(w, 65535)) {
		return 1;
	}
	if (w->field == 0)
		__builtin_memcpy(w->source, w->address, 16);
	if (w->field == 2)
		w->port = w->number;
	// CR ends the last field, and nothing else does.
	if ((byte == '\r') != (w->field == 3))
		return 1;
	w->field++;
	w->number = w->digits = w->parts = w->gap = 0;
	__builtin_memset(w->address, 0, 16);
	return 0;
}

static __always_inline int decimal(struct walk *w, u8 byte, u32 digits)
{
	// No leading zeros.
	if (byte < '0' || byte > '9' || w->digits == digits || (w->digits && w->number == 0))
		return 1;
	w->number = w->number * 10 + byte - '0';
	w->digits++;
	return 0;
}

static __always_inline int v6_byte(struct scratch *s, struct walk *w, u8 byte)
{
	if (byte != ':') {
		u8 lower = byte | 0x20;
		u32 digit = byte >= '0' && byte <= '9' ? byte - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 16;
		if (digit > 15 || w->digits == 4)
			return 1;
		w->number = w->number << 4 | digit;
		w->digits++;
		return 0;
	}
	u8 next = s->bytes[(w->at + 1) & 1023];
	if (w->digits) {
		if (w->parts >= 7)
			return 1;
		put_group(w);
		w->number = w->digits = 0;
		// A single colon is followed by a digit, which the next byte shows.
		return is_space(next);
	}
	// The second colon of `::`, or the first of one at the beginning.
	u8 previous = s->bytes[(w->at - 1) & 1023];
	if (previous == ' ')
		return next != ':';
	if (previous != ':' || w->gap)
		return 1;
	w->gap = w->parts + 1;
	return 0;
}

static long read_line(u32 index, struct byte_walk *walk)
{
	struct scratch *s = walk->scratch;
	struct walk *w = &s->walk;
	u32 at = w->at;
	if (at + 1 >= w->end)
		return 1;
	u8 byte = s->bytes[at & 1023], next = s->bytes[(at + 1) & 1023];
	int fault = 0;
	if (byte == '\n' || (byte == '\r' && next != '\n'))
		return 1;
	if (!w->unknown) {
		if (is_space(byte))
			fault = end_of_field(w, byte);
		else if (w->field >= 2)
			fault = decimal(w, byte, 5);
		else
			fault = v6_byte(s, w, byte);
	}
	if (fault)
		return 1;
	w->at = at + 1;
	w->done = byte == '\r';
	return w->done;
}

// A decimal number from `at` on that `last` follows: its value, and in the three lowest bits its digits; less than 0 if there is none.
ALONE int read_number(u32 at, u32 largest, u32 last)
{
	struct scratch *s = get_scratch();
	u32 value = 0;
	if (!s)
		return -1;
	for (u32 i = 0; i < 6; i++) {
		u8 byte = s->bytes[(at + i) & 1023];
		if (byte == last)
			return i && value <= largest ? (int)(value << 3 | i) : -1;
		// No leading zeros.
		if (byte < '0' || byte > '9' || (i && !value))
			return -1;
		value = value * 10 + byte - '0';
	}
	return -1;
}

// `192.0.2.1 198.51.100.1 40001 443\r\n`, by far the most frequent, number by number. Returns where it ends, 0 if it is not right.
static __always_inline u32 read_tcp4(struct scratch *s, u32 at)
{
	u32 source = 0, port = 0;
	for (u32 i = 0; i < 10; i++) {
		u32 last = i == 9 ? '\r' : i == 8 || (i & 3) == 3 ? ' ' : '.';
		int number = read_number(at, i < 8 ? 255 : 65535, last);
		if (number < 0)
			return 0;
		at += (number & 7) + 1;
		if (i < 4)
			source = source << 8 | number >> 3;
		if (i == 8)
			port = number >> 3;
	}
	s->header.client.word[2] = MAPPED;
	s->header.client.word[3] = bpf_htonl(source);
	s->header.port = bpf_htons(port);
	return s->bytes[at & 1023] == '\n' ? at + 1 : 0;
}

// Specification 2.1: at most 107 bytes with CR LF.
ALONE int read_v1(u32 available)
{
	struct scratch *s = get_scratch();
	if (!s || available < 15)
		return 0;
	u8 *b = s->bytes;
	struct walk *w = &s->walk;
	struct header *h = &s->header;
	int is_tcp = b[6] == 'T' && b[7] == 'C' && b[8] == 'P' && b[10] == ' ';
	if (is_tcp && b[9] == '4') {
		h->length = read_tcp4(s, 11);
		// What is behind what has come is left from another header.
		h->claim = h->length && h->length <= available ? CLAIM_CLIENT : CLAIM_ODD;
		return 0;
	}
	__builtin_memset(w, 0, sizeof(*w));
	w->at = 11;
	w->end = available < 107 ? available : 107;
	if (b[6] == 'U' && b[7] == 'N' && b[8] == 'K' && b[9] == 'N' && b[10] == 'O' && b[11] == 'W' && b[12] == 'N' &&
	    is_space(b[13])) {
		w->unknown = 1;
		w->at = 13;
	} else if (!is_tcp || b[9] != '6') {
		return 0;
	}
	struct byte_walk walk = { .scratch = s };
	bpf_loop(107, read_line, &walk, 0);
	if (!w->done)
		return 0;
	// What was read last is the CR.
	h->length = w->at + 1;
	h->claim = w->unknown ? CLAIM_LOCAL : CLAIM_CLIENT;
	__builtin_memcpy(&h->client, w->source, 16);
	h->port = bpf_htons(w->port);
	return 0;
}

// Into the scratch.
ALONE int read_header(struct __sk_buff *skb, struct packet *p __arg_nonnull, u32 flags)
{
	struct scratch *s = get_scratch();
	u32 n = p->payload;
	if (!s)
		return 0;
	__builtin_memset(&s->header, 0, sizeof(s->header));
	if (n == 0)
		return 0;
	if (n > MAX_HEADER)
		n = MAX_HEADER;
	if (bpf_skb_load_bytes(skb, p->l4 + p->doff * 4, s->bytes, n))
		return 0;
	u8 *b = s->bytes;
	if (n >= 16 && b[0] == '\r' && b[1] == '\n' && b[2] == '\r' && b[3] == '\n' && b[4] == 0 && b[5] == '\r' && b[6] == '\n' &&
	    b[7] == 'Q' && b[8] == 'U' && b[9] == 'I' && b[10] == 'T' && b[11] == '\n')
		return read_v2(n, flags);
	if (n >= 15 && b[0] == 'P' && b[1] == 'R' && b[2] == 'O' && b[3] == 'X' && b[4] == 'Y' && b[5] == ' ')
		return read_v1(n);
	return 0;
}
