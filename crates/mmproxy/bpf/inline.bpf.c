// SPDX-License-Identifier: MIT OR GPL-2.0-only
// mmproxy's inline mode: the PROXY protocol header is taken off in the kernel, and the server's own socket has the client as
// its peer. docs/mmproxy.md draws the packets' way.
//
//     balancer's SYN ────► answered here; what was agreed is in the sequence number (cookie.h), nothing is stored
//     its ACK ───────────► dropped: there is no socket yet
//     its first data ────► the header says who (header.h), it is cut off (cut.h), and the kernel makes the server's socket from
//                          the rest (handshake.h)
//     ever after ────────► `to_server` puts the client's address in, `to_client` the balancer's; sequence numbers stay
//
// Whatever is not plain is handed over as it is to mmproxy's own listening socket, for that one connection.

#include "maps.h"
#include "packet.h"
#include "cookie.h"
#include "header.h"
#include "handshake.h"
#include "cut.h"
#include "icmp.h"

#define TRIES 8
#define LOOPBACK 1

static __always_inline struct listener *find_listener(const struct packet *p)
{
	struct listener_key key = { .local = p->key.local, .port = p->key.local_port };
	struct listener *found = bpf_map_lookup_elem(&listeners, &key);
	if (!found && !p->v6) {
		key.local = (struct address){ { 0, 0, MAPPED, 0 } };
		found = bpf_map_lookup_elem(&listeners, &key);
	}
	if (!found) {
		key.local = (struct address){};
		found = bpf_map_lookup_elem(&listeners, &key);
	}
	return found;
}

static __always_inline int is_trusted(const struct listener *l, const struct packet *p)
{
	return !l->trusted || is_listed(l->trusted, &p->key.remote);
}

// What it was made for has come through by now, or never will.
static __always_inline int is_old(const struct flow *flow)
{
	return (u16)(seconds() - flow->born) >= 2;
}

static __always_inline struct target *target_of(struct listener *l, const struct packet *p)
{
	return p->v6 ? &l->target[1] : &l->target[0];
}

// The kernel takes over: mmproxy's own socket, or none, answers.
static __always_inline int pass_syn(void)
{
	count(SYN_PASSED);
	return TC_ACT_OK;
}

// Whether it has the address and port of a client of ours.
static __always_inline int is_claimed(const struct packet *p)
{
	struct flow_key claimed = p->key;
	claimed.direction = TO_CLIENT;
	return bpf_map_lookup_elem(&flows, &claimed) != 0;
}

// There is a socket for just this packet: mmproxy's own, where it has taken the connection by itself, or that of a client of ours, for
// whom nobody may speak but the balancer.
static __always_inline int pass_to_socket(const struct packet *p)
{
	if (!is_claimed(p))
		return TC_ACT_OK;
	count(CLAIMED);
	return TC_ACT_SHOT;
}

// Whether the server listens shows when the header has come.
ALONE int handle_syn(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct listener *l __arg_nonnull)
{
	struct scratch *s = get_scratch();
	if (!s)
		return TC_ACT_SHOT;
	int state = socket_state(skb, &p->key, p->v6);
	if (state && state != TCP_LISTEN && pass_to_socket(p) != TC_ACT_OK)
		return TC_ACT_SHOT;
	if (state != TCP_LISTEN || l->flags & DRAINING || !target_of(l, p)->port || p->payload || p->flags & (FIN | RST))
		return pass_syn();
	if (read_options(skb, p) || s->options.foreign || s->options.mss < (p->v6 ? 1220 : 536))
		return pass_syn();
	return answer_syn(skb, p, l->slot);
}

// Hands the connection to mmproxy's own socket, with its header.
static __always_inline int fall_back(struct __sk_buff *skb, struct packet *p)
{
	if (assign(skb, p, &p->key)) {
		count(FAILED);
		return TC_ACT_SHOT;
	}
	count(FALL_BACK);
	return TC_ACT_OK;
}

// Addresses that gain trust, or that cannot be a peer's: user space says which are let through.
static __always_inline int is_dangerous(const struct settings *s, const struct address *a, int v6)
{
	u32 first = bpf_ntohl(v6 ? a->word[0] : a->word[3]) >> 24;
	if (v6 && (first == 0xff || first == 0 || bpf_ntohl(a->word[0]) >> 22 == 0xfe80 >> 6))
		return 1;
	if (!v6 && (first == 0 || first == 127 || first >= 224))
		return 1;
	return is_listed(s->own, a);
}

// Whether the rules plainly allow it: the first that fits decides.
static __always_inline int is_allowed(const struct listener *l, const struct address *client, int has_tlvs)
{
	for (u32 i = 0; i < MAX_RULES; i++) {
		if (i >= l->rules)
			return 1;
		const struct rule *rule = &l->rule[i];
		if (rule->list && !is_listed(rule->list, client))
			continue;
		if (rule->flags & RULE_TLV) {
			if (has_tlvs)
				return 0;
			continue;
		}
		return rule->flags & RULE_ALLOW;
	}
	return 1;
}

enum booking { BOOKED, TAKEN, FULL };

// Whether a connection that has booked the client's address and port, and for which there is no socket, has ended. Its entries go
// then, before the sweep finds them. Where its socket has not been seen it may be about to be made.
static __always_inline int has_ended(const struct flow_key *back, const struct flow *booked)
{
	struct flow_key key = { booked->remote, back->local, booked->remote_port, back->local_port, TO_SERVER };
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || flow->remote_port != back->remote_port || !is_same(&flow->remote, &back->remote))
		return 1;
	if (!(flow->flags & LIVE) && !is_old(flow))
		return 0;
	bpf_map_delete_elem(&flows, &key);
	return 1;
}

// Books the client's address and this port for the connection, unless a socket or another connection has them.
ALONE int book(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct flow *client __arg_nonnull)
{
	struct flow_key back = { client->remote, p->key.local, client->remote_port, p->key.local_port, TO_CLIENT };
	struct flow balancer = *client;
	balancer.remote = p->key.remote;
	balancer.remote_port = p->key.remote_port;
	int state = socket_state(skb, &back, p->v6);
	if (state && state != TCP_LISTEN)
		return TAKEN;
	if (bpf_map_update_elem(&flows, &back, &balancer, BPF_NOEXIST)) {
		struct flow *other = bpf_map_lookup_elem(&flows, &back);
		if (!other)
			return FULL;
		if ((other->remote_port != balancer.remote_port || !is_same(&other->remote, &balancer.remote)) &&
		    !has_ended(&back, other))
			return TAKEN;
		if (bpf_map_update_elem(&flows, &back, &balancer, BPF_ANY))
			return FULL;
	}
	struct flow_key key = p->key;
	if (!bpf_map_update_elem(&flows, &key, client, BPF_ANY))
		return BOOKED;
	bpf_map_delete_elem(&flows, &back);
	return FULL;
}

static __always_inline int choose_port(struct __sk_buff *skb, struct packet *p, struct flow *client, u32 flags)
{
	for (u32 i = 0; i < TRIES; i++) {
		int booking = book(skb, p, client);
		if (booking != TAKEN)
			return booking;
		if (flags & DROP_DUPLICATE)
			return TAKEN;
		client->remote_port = bpf_htons(1024 + bpf_get_prandom_u32() % 64512);
	}
	return TAKEN;
}

static __always_inline void forget(const struct packet *p, const struct flow *client)
{
	struct flow_key back = { client->remote, p->key.local, client->remote_port, p->key.local_port, TO_CLIENT };
	struct flow_key key = p->key;
	bpf_map_delete_elem(&flows, &back);
	bpf_map_delete_elem(&flows, &key);
}

// What is to be done next, beside what tc knows. Steps are called one after the other, for the stack's sake.
enum step { GO_UNKNOWN = 100, GO_FIRST, GO_ADMIT };

// The header names a client that may be let in: cut it off and let the server's socket be made.
ALONE int admit(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct listener *l __arg_nonnull)
{
	struct scratch *s = get_scratch();
	if (!s)
		return TC_ACT_SHOT;
	struct header *h = &s->header;
	struct target *target = target_of(l, p);
	struct flow client = { .remote = h->client, .remote_port = h->port, .ifindex = skb->ifindex, .born = seconds() };
	if (bpf_skb_load_bytes(skb, ETH_ALEN, client.mac, sizeof(client.mac)))
		return TC_ACT_SHOT;
	// What leaves by loopback has no next hop.
	if (skb->ifindex != LOOPBACK)
		client.flags = REDIRECT;
	if (h->claim == CLAIM_CLIENT) {
		int booking = choose_port(skb, p, &client, l->flags);
		if (booking == TAKEN && l->flags & DROP_DUPLICATE) {
			count(DUPLICATE);
			return TC_ACT_OK;
		}
		if (booking != BOOKED) {
			count(FLOWS_FULL);
			return fall_back(skb, p);
		}
		if (client.remote_port != h->port)
			count(PORT_CHANGED);
	} else {
		client.remote = p->key.remote;
		client.remote_port = p->key.remote_port;
	}
	// Only the listening socket is looked for; a group gives one of its own by the port's low byte. The kernel looks among connections first:
	// with few endpoints it reads what is in the cache.
	struct flow_key server = { p->key.remote, target->local, client.remote_port & bpf_htons(255), target->port };
	if (assign(skb, p, &server)) {
		if (h->claim == CLAIM_CLIENT)
			forget(p, &client);
		return fall_back(skb, p);
	}
	u32 claim = h->claim;
	if (cut(skb, p, &client, h->length)) {
		// The peer repeats it; what was booked is found again then.
		count(FAILED);
		return TC_ACT_SHOT;
	}
	count(claim == CLAIM_CLIENT ? ASSIGNED : ASSIGNED_LOCAL);
	return TC_ACT_OK;
}

// Trust that was lost ends no connection that mmproxy has taken by itself.
ALONE int handle_stranger(struct __sk_buff *skb, struct packet *p __arg_nonnull)
{
	int state = p->flags & SYN ? 0 : socket_state(skb, &p->key, p->v6);
	if (state && state != TCP_LISTEN)
		return pass_to_socket(p);
	count(is_claimed(p) ? CLAIMED : NOT_ALLOWED);
	return TC_ACT_SHOT;
}

// What begins no connection, from a balancer of whose connections none is known.
ALONE int handle_first(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct listener *l __arg_nonnull)
{
	struct settings *s = get_settings();
	struct scratch *scratch = get_scratch();
	if (!s || !scratch || read_options(skb, p))
		return TC_ACT_SHOT;
	int has_cookie = !(p->flags & (SYN | RST)) && p->flags & ACK && is_cookie_right(s, p, l->slot, scratch->options.timestamps);
	if (has_cookie && !p->payload && !(p->flags & FIN)) {
		count(ACK_DROPPED);
		return TC_ACT_SHOT;
	}
	int state = socket_state(skb, &p->key, p->v6);
	if (state && state != TCP_LISTEN)
		return pass_to_socket(p);
	if (p->flags & (SYN | RST) || !(p->flags & ACK))
		return TC_ACT_SHOT;
	if (!has_cookie) {
		// The first segment was lost, which the balancer repeats: a RST would end what is well.
		if (is_of_a_handshake(s, p, l->slot, scratch->options.timestamps)) {
			count(NOT_YET);
			return TC_ACT_SHOT;
		}
		// The kernel's own listening socket has no such connection either, and says so by RST.
		count(BAD_COOKIE);
		return TC_ACT_OK;
	}
	struct header *h = &scratch->header;
	read_header(skb, p, l->flags);
	if (h->claim == CLAIM_ODD || h->length > l->header_limit || !can_cut(skb, p, h->length))
		return fall_back(skb, p);
	struct address client = h->claim == CLAIM_CLIENT ? h->client : p->key.remote;
	if (!is_allowed(l, &client, h->has_tlvs) || !target_of(l, p)->port)
		return fall_back(skb, p);
	if (h->claim == CLAIM_CLIENT) {
		int mapped = !client.word[0] && !client.word[1] && client.word[2] == MAPPED;
		if (mapped == p->v6 || !h->port || is_dangerous(s, &client, p->v6))
			return fall_back(skb, p);
	}
	return GO_ADMIT;
}

// There was a header, but whether the server's socket has been made is not known: the translated packet may have been lost.
ALONE int handle_young(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct listener *l __arg_nonnull,
		       struct flow *flow __arg_nonnull)
{
	struct settings *s = get_settings();
	struct scratch *scratch = get_scratch();
	if (!s || !scratch)
		return TC_ACT_SHOT;
	struct flow_key e = { flow->remote, p->key.local, flow->remote_port, p->key.local_port };
	int state = socket_state(skb, &e, p->v6);
	if (state && state != TCP_LISTEN) {
		flow->flags |= p->flags & FIN ? LIVE | CLOSING : LIVE;
		return translate(skb, p, flow, TO_SERVER);
	}
	struct flow gone = *flow;
	if (read_options(skb, p))
		return TC_ACT_SHOT;
	if (p->flags & ACK && p->payload && is_cookie_right(s, p, l->slot, scratch->options.timestamps)) {
		count(REPEATED);
		forget(p, &gone);
		return GO_FIRST;
	}
	// What follows the first segment waits until that has come through.
	count(NOT_YET);
	return TC_ACT_SHOT;
}

// RFC 9293 3.10.7.4: a SYN on a live connection is the socket's to answer. One that is gone makes room.
ALONE int handle_syn_again(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct flow *flow __arg_nonnull)
{
	struct flow_key e = { flow->remote, p->key.local, flow->remote_port, p->key.local_port };
	int state = socket_state(skb, &e, p->v6);
	if (state && state != TCP_LISTEN && state != TCP_TIME_WAIT)
		return translate(skb, p, flow, TO_SERVER);
	struct flow gone = *flow;
	forget(p, &gone);
	return GO_UNKNOWN;
}

// Forgets a connection, named by its balancer, if there is no socket any more.
ALONE int forget_ended(struct __sk_buff *skb, struct flow_key *key __arg_nonnull)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);
	if (!flow || (!(flow->flags & LIVE) && !is_old(flow)))
		return 0;
	struct flow_key back = { flow->remote, key->local, flow->remote_port, key->local_port, TO_CLIENT };
	int state = socket_state(skb, &back, back.remote.word[0] || back.remote.word[1] || back.remote.word[2] != MAPPED);
	if (state && state != TCP_LISTEN)
		return 0;
	struct flow_key own = *key;
	bpf_map_delete_elem(&flows, &back);
	bpf_map_delete_elem(&flows, &own);
	count(ENDED);
	return 1;
}

// What comes from the balancer after its FIN ends most connections: their sockets are looked for a few connections later. So short
// connections leave no work to the sweep, and their entries' memory is used again while it is in the cache.
ALONE int remember_end(struct __sk_buff *skb, struct flow_key *key __arg_nonnull)
{
	u32 zero = 0;
	struct endings *e = bpf_map_lookup_elem(&endings, &zero);
	if (!e)
		return 0;
	u32 at = e->next++ % ENDINGS;
	struct flow_key earlier = e->key[at];
	e->key[at] = *key;
	return forget_ended(skb, &earlier);
}

SEC("tc")
int to_server(struct __sk_buff *skb)
{
	struct packet p;
	int kind = read_packet(skb, &p, TO_SERVER), next = GO_UNKNOWN;
	// What is not ours is for other programs of the interface.
	if (kind == NOT_OURS)
		return TC_ACT_UNSPEC;
	if (kind == ICMP)
		return translate_quote(skb, TO_SERVER, skb->protocol == bpf_htons(ETH_P_IPV6));
	struct flow *flow = bpf_map_lookup_elem(&flows, &p.key);
	if (kind == ODD) {
		// Without a translation it would be answered by RST.
		if (!flow)
			return TC_ACT_UNSPEC;
		count(UNREADABLE);
		return TC_ACT_SHOT;
	}
	if (flow) {
		count(TO_SERVER_PACKETS);
		if (flow->flags & LIVE && !(p.flags & SYN)) {
			int verdict = translate(skb, &p, flow, TO_SERVER);
			if (p.flags & FIN) {
				flow->flags |= CLOSING;
			} else if (flow->flags & CLOSING) {
				flow->flags &= ~CLOSING;
				remember_end(skb, &p.key);
			}
			return verdict;
		}
	}
	struct listener *l = find_listener(&p);
	if (flow && p.flags & SYN)
		next = handle_syn_again(skb, &p, flow);
	else if (flow)
		next = l ? handle_young(skb, &p, l, flow) : TC_ACT_SHOT;
	if (next < GO_UNKNOWN)
		return next;
	if (!l)
		return TC_ACT_UNSPEC;
	if (next == GO_UNKNOWN && !is_trusted(l, &p))
		return handle_stranger(skb, &p);
	if (next == GO_UNKNOWN && (p.flags & (SYN | ACK)) == SYN)
		return handle_syn(skb, &p, l);
	next = handle_first(skb, &p, l);
	return next == GO_ADMIT ? admit(skb, &p, l) : next;
}

// Whether it leaves for whom the balancer's packets come from: the client's next hop is the balancer's. The kernel looks next hops up
// for programs only where it forwards.
static __always_inline int leaves_for_balancer(struct __sk_buff *skb, const struct flow *flow)
{
	u16 *mac = (void *)(long)skb->data;
	if ((void *)(mac + 3) > (void *)(long)skb->data_end || skb->ifindex != flow->ifindex)
		return 0;
	return mac[0] == flow->mac[0] && mac[1] == flow->mac[1] && mac[2] == flow->mac[2];
}

SEC("tc")
int to_client(struct __sk_buff *skb)
{
	struct packet p;
	int kind = read_packet(skb, &p, TO_CLIENT);
	if (kind == ICMP)
		return translate_quote(skb, TO_CLIENT, skb->protocol == bpf_htons(ETH_P_IPV6));
	// Sockets that the programs have made send no SYN.
	if (kind != PLAIN || p.flags & SYN)
		return TC_ACT_UNSPEC;
	struct flow *flow = bpf_map_lookup_elem(&flows, &p.key);
	if (!flow)
		return TC_ACT_UNSPEC;
	u32 redirect = flow->flags & REDIRECT && !leaves_for_balancer(skb, flow), ifindex = flow->ifindex;
	count(TO_CLIENT_PACKETS);
	int verdict = translate(skb, &p, flow, TO_CLIENT);
	if (verdict == TC_ACT_OK && redirect)
		return bpf_redirect_neigh(ifindex, 0, 0, 0);
	return verdict;
}

struct sweep_walk {
	struct __sk_buff *skb;
	u32 entries, ended;
};

static long sweep_one(u32 index, struct sweep_walk *walk)
{
	struct __sk_buff *skb = walk->skb;
	struct flow_key key;
	if (bpf_skb_load_bytes(skb, L3 + index * sizeof(key), &key, sizeof(key)))
		return 1;
	walk->ended += forget_ended(skb, &key);
	return 0;
}

// Run by user space on keys of connections, behind an Ethernet header: those without a socket are forgotten, and counted.
SEC("tc")
int sweep(struct __sk_buff *skb)
{
	struct sweep_walk walk = { .skb = skb, .entries = (skb->len - L3) / sizeof(struct flow_key) };
	bpf_loop(walk.entries, sweep_one, &walk, 0);
	return walk.ended;
}

char _license[] SEC("license") = "Dual MIT/GPL";
