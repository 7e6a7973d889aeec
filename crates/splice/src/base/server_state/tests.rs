use super::*;

const NOW: Instant = Instant::from_millis(1_000_000);
const REFUSED: Result<(), CheckFailure> = Err(CheckFailure::Refused);
const UNANSWERED: Result<(), CheckFailure> = Err(CheckFailure::Unanswered);

/// What each of these results changes.
fn news(state: ServerState<'_>, results: &[Result<(), CheckFailure>]) -> Vec<CheckNews> {
    let note = |result: &Result<(), CheckFailure>| state.note_check(*result, (2, 3), NOW);
    results.iter().map(note).collect()
}

#[test]
fn three_failures_in_a_row_are_down_and_two_passes_up() {
    use CheckNews::{Down, None, Up};
    let states = ServerStates::default();
    let state = states.of(7);
    assert_eq!(news(state, &[REFUSED, REFUSED, Ok(()), REFUSED, UNANSWERED]), [None; 5]);
    assert!(!state.word().is_down() && state.word().is_doubted());
    assert_eq!(news(state, &[REFUSED, REFUSED]), [Down, None]);
    assert_eq!(state.down(), Some((CheckFailure::Refused, NOW)));
    assert_eq!(news(state, &[UNANSWERED, Ok(()), UNANSWERED, Ok(())]), [None; 4]);
    assert_eq!(state.down(), Some((CheckFailure::Unanswered, NOW)));
    assert_eq!(news(state, &[Ok(()), Ok(()), REFUSED]), [Up, None, None]);
    assert_eq!(state.down(), Option::None);
    assert!(!states.of(6).word().is_down() && !states.of(u16::MAX).word().is_down());
}

#[test]
fn a_drain_and_checks_do_not_touch_each_other() {
    let states = ServerStates::default();
    let state = states.of(0);
    state.set_service(Service::InMaintenance);
    news(state, &[REFUSED; 3]);
    assert!(state.word().is_drained() && state.word().is_down());
    assert_eq!(state.word().service(), Service::InMaintenance);
    state.set_service(Service::Drained);
    assert_eq!(state.word().service(), Service::Drained);
    state.set_service(Service::In);
    assert!(!state.word().is_drained() && state.word().is_down());
    state.forget_checks();
    assert_eq!(state.word(), ServerWord(0));
}

#[test]
fn the_most_that_can_be_asked_for_is_counted() {
    let states = ServerStates::default();
    let note = |result| states.of(0).note_check(result, (255, 255), NOW);
    assert_eq!((0..255).filter(|_| note(REFUSED) != CheckNews::None).count(), 1);
    assert!(states.of(0).word().is_down());
    assert_eq!((0..255).filter(|_| note(Ok(())) != CheckNews::None).count(), 1);
    assert_eq!(states.of(0).word().0 & !REASON, 0);
}

#[test]
fn of_several_who_learn_the_same_at_once_one_is_told() {
    let states = ServerStates::default();
    let told: usize = std::thread::scope(|scope| {
        let note = || {
            (0..300)
                .filter(|_| news(states.of(0), &[REFUSED]) == [CheckNews::Down])
                .count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(note)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!(told, 1);
}

#[test]
fn answers_are_noted_now_and_then() {
    let states = ServerStates::default();
    let state = states.of(0);
    state.note_answer(NOW);
    state.note_answer(NOW + Duration::from_millis(7));
    assert_eq!(state.answered_at(), NOW);
    state.note_answer(NOW + Duration::from_millis(8));
    assert_eq!(state.answered_at(), NOW + Duration::from_millis(8));
    state.forget();
    assert_eq!(state.answered_at(), Instant::ZERO);
}

#[test]
fn why_a_server_is_out_and_what_failed_last_is_known() {
    let states = ServerStates::default();
    let state = states.of(0);
    let times = (Duration::from_secs(1), Duration::from_secs(8));
    assert_eq!(state.failed_check(), None);
    news(state, &[UNANSWERED]);
    assert_eq!(state.failed_check(), Some(CheckFailure::Unanswered));
    assert!(state.eject(Why::Silence, None, times, NOW).is_some());
    assert_eq!(
        (state.ejected_by(), state.failed_check()),
        (Why::Silence, None),
        "the later of both"
    );
    state.note_answer(NOW);
    assert_eq!(state.ejected_by(), Why::Silence, "it is known on");
    assert!(state.eject(Why::Failure, None, times, NOW).is_some());
    news(state, &[REFUSED; 3]);
    assert_eq!(state.ejected_by(), Why::Failure);
    assert_eq!(state.down(), Some((CheckFailure::Refused, NOW)));
    assert!(
        state
            .eject(Why::Silence, Some(state.word().until()), times, NOW)
            .is_some()
    );
    assert_eq!(
        state.down(),
        Some((CheckFailure::Refused, NOW)),
        "what holds it down is told on"
    );
}
