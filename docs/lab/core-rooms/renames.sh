#!/usr/bin/env bash
# Renames of the core to the field's words, for the plan in docs/lab/core-rooms/renames.md.
# usage: docs/lab/core-rooms/renames.sh PHASES [CORE]     PHASES is A to E or a run of them (ABC); CORE is where the core
# is, src/proxy unless said. In a work tree without changes, from its root.
#
# A frees words that are wanted, B renames types, C variants and drop reasons, D modules with their files and the fields of
# `Proxy`, E functions. In this order, and inside a phase from top to bottom. String literals are left alone. A to C take
# whole words, comments too; D a word only where it is a module, a path or a field of `self`. What this cannot know the
# compiler finds. Afterwards: cargo fmt, cargo check; for C also UPDATE_GOLDEN=1 and a look at the difference.
set -euo pipefail
phases=${1:?usage: renames.sh PHASES [CORE]}
core=${2:-src/proxy}
[ -f "$core/step.rs" ] || { echo "renames.sh: the core is not in $core" >&2; exit 1; }
all=(src crates tests benches fuzz/src fuzz/fuzz_targets examples)
users=("$core" src/stages src/stages.rs tests/core tests/sim src/pipeline.rs src/engine fuzz/src)

# raw PHASE REGEX OLD NEW PATH...: replaces what the regex of perl matches in the Rust files that have the word OLD.
raw() {
    local phase=$1 regex=$2 old=$3 new=$4 files
    shift 4
    [[ $phases == *"$phase"* ]] || return 0
    files=$(grep -rlwE --include='*.rs' -- "$old" "$@" || true)
    # shellcheck disable=SC2016 # perl reads the environment
    [ -z "$files" ] || RX=$regex NEW=$new xargs -d '\n' perl -pi -e 's/$ENV{RX}/$ENV{NEW}/g' <<<"$files"
}

# word PHASE OLD NEW PATH...: the same for a whole word outside quotes.
word() {
    local phase=$1 old=$2 new=$3
    shift 3
    raw "$phase" "(?<![\\w\"])$old(?![\\w\"])" "$old" "$new" "$@"
}

# module OLD NEW PATH...: phase D: a module with its file, where it is declared and in paths.
module() {
    local old=$1 new=$2 place
    [[ $phases == *D* ]] || return 0
    for place in "$core/$old" "$core/$old.rs"; do
        if [ -e "$place" ]; then git mv "$place" "${place/"$old"/"$new"}"; fi
    done
    shift 2
    raw D "(?<=mod )$old(?=;)|(?<![\\w\".])$old(?=::)|(?<=super::)$old(?!\\w)" "$old" "$new" "$@"
}

# table OLD NEW PATH...: phase D: a module, and the field of `Proxy` that has its name.
table() {
    local old=$1 new=$2
    raw D "(?<=^    )$old(?=: )|(?<=^            )$old(?=: )" "$old" "$new" "$core/mod.rs"
    module "$@"
    shift 2
    raw D "(?<=self\\.)$old(?![\\w(])" "$old" "$new" "$@"
}

word A Direction InspectedDirection "$core"/inspect "$core"/apply/inspecting.rs "$core"/apply/introducing.rs "$core"/apply/repeating.rs "$core"/icmp.rs
word A Budget RoundBudget "$core"/budget.rs "$core"/timeout.rs "$core"/handshake.rs "$core"/probe.rs
word A Budget RandomizedLimit "$core"/allowance.rs
word A Patience ProbeBackoff "$core"/probe.rs
word A Patience PayloadWait "$core"/apply/waiting.rs "$core"/apply/mod.rs
word A Answer ForwardedSynAck "$core"/passed_syn.rs "$core"/apply/shaking.rs
word A Ends Endpoints "$core"/send.rs "$core"/batch.rs "$core"/apply
word A Share Quota "$core"
word A Shares SourceQuotas "$core"
raw A '^    Copy,$' Copy '    Unacked,' "$core"/held.rs
raw A '(?<=Claim::)Copy(?!\w)' Copy 'Unacked' "$core" tests/models/held.rs
raw A '^    AskedFor,$' AskedFor '    Acked,' "$core"/held.rs
raw A '(?<=Claim::)AskedFor(?!\w)' AskedFor 'Acked' "$core" tests/models/held.rs
raw A '^    Owed,$' Owed '    Pinned,' "$core"/held.rs
raw A '(?<=Claim::)Owed(?!\w)' Owed 'Pinned' "$core" tests/models/held.rs
word A Claim EvictionClass "$core" tests/models/held.rs
word B Complaint IcmpError "${all[@]}"
word B Flow Direction "$core"
word B Half FinState "${users[@]}"
word B SentFin FinChange "${users[@]}"
word B ResetVerdict RstCheck "$core"
word B Promises SynAckOptions "$core"
word B PromiseSettings SynAckSettings "${all[@]}"
word B Promise AdvertisedOptions "$core"
word B Abilities ServerCaps "${all[@]}"
word B ServerAbilities ReportedServerCaps "${all[@]}"
word B AnnounceFields SendProxyFields "${all[@]}"
word B Announce SendProxy "${all[@]}"
word B Accept AcceptProxy "$core" src/config
word B CarriedTable ReceivedHeaders "$core"
word B Carried ReceivedHeader "$core"
word B Sighting HeaderParse "$core"
word B Borrowed TransparentSources "$core"
word B QuarantineRing TimeWaitRing "${all[@]}"
word B Rested TimeWaitEntry "$core"
word B Debts RtxQueues "$core"
word B Owed RtxQueue "$core"/owed.rs "$core"/apply
word B Payment AckEffect "$core"
word B Settlement AckHold "$core"
word B HeldPool ReassemblyPool "${all[@]}"
word B HeldId BufferId "${all[@]}"
word B HoldError ReassemblyError "${all[@]}"
word B PassedSyn ForwardedSyn "$core"
word B UsedCookies ReplayFilter "$core"
word B KnownClients ValidatedClients "$core"
word B Scene ActionContext "$core"
word B Handoff SpliceParams "$core"
word B Slots Slab "$core"
word B OncePerSecond ConnectionLimits "$core"
word B Budgets CoreLimits "$core"
word B Grant LimitKind "$core"
word B Shifts Offsets "$core"
word B Begun InspectStart "$core"
word B Shown InspectOutcome "$core"
word B Newest PeerNumbers "$core"
word C ServerHandshake ServerSynSent "${users[@]}"
word C SynAnswered SynAckForwarded "${users[@]}"
word C AwaitHeader AwaitProxyHeader "${users[@]}"
word C Phase::Quarantine Phase::TimeWait "${users[@]}"
word C Unbound Closed "${users[@]}"
word C DoubtfulReset InWindowRst "${users[@]}"
word C BlindReset OutOfWindowRst "${users[@]}"
word C Proven Exact "$core"
word C Doubtful InWindow "$core"
word C Blind OutOfWindow "$core"/close.rs "$core"/classify.rs "$core"/apply/inspecting.rs
word C SynToPass SynToForward "${users[@]}"
word C SynAgain SynRetransmit "${users[@]}"
word C RememberSyn StoreSyn "${users[@]}"
word C PassSynAck ForwardSynAck "${users[@]}"
word C AcknowledgeHeld AckBuffered "${users[@]}"
word C SendHeld SendBuffered "${users[@]}"
word C SendOwed Retransmit "${users[@]}"
word C GiveUpCopy EvictUnacked "${users[@]}"
word C CopyPressed UnackedEvicted "${users[@]}"
word C HeldPressed ConnectionEvicted "${users[@]}"
word C GiveCallUp MoveToNextServer "${users[@]}"
word C RepeatSyn RetransmitSyn "${users[@]}"
word C ForwardRarely ForwardLimited "${users[@]}"
word C ProbeSender SendKeepAlive "${users[@]}"
word C ForgetUnserved ForgetWithFailure "${users[@]}"
word C OwedFull RtxFull "${users[@]}"
raw C '(?<!Cause::)(?<![\w"])HeldFull(?![\w"])' HeldFull 'ReassemblyFull' "${users[@]}"
word C HeldShare ReassemblyQuota "${users[@]}"
word C HeldGivenUp ReassemblyEvicted "${users[@]}"
word C SynsFull ForwardedSynsFull "${users[@]}"
word C Cut Resegmented "${users[@]}"
word C UsedCookie CookieReplayed "${users[@]}"
module complaint icmp_error "${users[@]}"
module crossing siit "${users[@]}"
table promises syn_ack_options "${users[@]}"
module announce send_proxy src
table carried received_headers "$core"
module borrowed transparent_sources "$core"
table quarantine time_wait "$core"
table owed rtx "$core"
table held reassembly "$core"
module shares source_quota "$core"
table passed_syns forwarded_syns "${all[@]}"
module passed_syn forwarded_syn "${all[@]}"
table used_cookies replay_filter "${all[@]}"
table known_clients validated_clients "${all[@]}"
table put_off deferred "$core"
module handle_put_off handle_deferred "$core"
module slots slab "$core"
module allowance limits "$core"
word E meet_stranger on_no_connection "$core"
word E met_syn classify_syn "$core"
word E met_at_rest classify_time_wait "$core"
word E listen_to_server learn_server_caps "$core"
word E abilities server_caps "${all[@]}"
word E give_back release "$core"
word E lend reserve "$core"
word E borrow_source reserve_client_source "$core"
word E forgive_debt drop_rtx "$core"
word E settle_debt on_server_ack "$core"
word E pays_all acks_all "$core"
word E lower_debt lower_rtx_mss "$core"
word E insert_debt push_rtx "$core"
word E repeat_syn_acks retransmit_syn_acks "$core"
word E repeat_owed on_rtx_timeout "$core"
word E send_owed send_rtx "$core"
word E repeat_kept retransmit_kept "$core"
word E end_rests expire_time_wait "$core"
word E end_oldest_rest evict_oldest_time_wait "$core"
word E rests_cut_short time_wait_evicted "${all[@]}"
word E is_quarantined is_time_wait "${all[@]}"
word E quarantined in_time_wait "${all[@]}"
word E shake_hands_after_all fall_back_to_cookie "$core"
word E note_return on_cookie_returned "$core"
word E forward_with_care forward_adjusted "$core"
word E forward_at_once forward_fast "$core"
word E pass_in_pieces resegment "$core"
word E told_edge advertised_edge "$core"
word E client_shift client_seq_offset "$core"
word E server_shift server_seq_offset "$core"
word E client_tsval_shift client_ts_offset "$core"
word E server_tsval_shift server_ts_offset "$core"
word E take_news take_caps_change "${all[@]}"
word E found_fields payload_fields "$core"
raw C '(?<!Phase::)Quarantine(?=\((?:Cause|cause|_))|(?<=WorkStage::)Quarantine|Quarantine(?= = "action)' Quarantine 'EnterTimeWait' "$core"/step.rs "$core"/stage.rs "$core"/apply/mod.rs "$core"/action.rs tests/core/matrix.rs
raw C '(?<![\w"])Quarantine(?![\w"])' Quarantine TimeWait "$core"/phase.rs
word E handle_quarantined on_time_wait "$core"
word E drive_quarantined drive_time_wait "$core"
word E while_quarantined while_in_time_wait "$core"
word E forward_rested forward_time_wait "$core"
word E of_rested of_time_wait "$core"
word E quarantine time_wait "$core"/step.rs
word E unbound closed "$core"/step.rs
word E server_handshake server_syn_sent "$core"/step.rs
word E syn_answered syn_ack_forwarded "$core"/step.rs
word E await_header await_proxy_header "$core"/step.rs
