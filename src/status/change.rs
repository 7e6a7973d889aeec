//! What `POST` changes, and what is for those only who may change something.

use std::sync::Arc;

use control::http::{Answer, Peer, Request};

use super::service::{Order, kept_change};
use super::{Doors, connections, lists, query, told};
use crate::engine::{Watch, steering};
use crate::journal::Change;
use crate::log_levels::LogLevels;

/// Answers at once that take long and are made beside the others.
const BESIDE: usize = 8;

/// What `POST` changes, but for subjects in and out of service.
const CHANGES: [&str; 12] = [
    "announce/on",
    "announce/off",
    "reset",
    "capture",
    "connections/end",
    "lists/add",
    "lists/remove",
    "records/reopen",
    "records/on",
    "records/off",
    "log",
    "reload",
];

pub(super) fn change(request: &Request<'_>, watch: &Watch, levels: &LogLevels, doors: Option<&Arc<Doors>>) -> Answer {
    let change = request.path.strip_prefix("/api/v1/");
    let order = Order::read(request.path, request.query);
    let is_one = |change: &&str| CHANGES.contains(change) || order.is_some();
    let Some(change) = change.filter(is_one) else {
        return Answer::refusal(405, "this only reads\n");
    };
    if let Some(refusal) = refusal(request.peer) {
        return refusal;
    }
    let takes_query =
        ["capture", "connections/end", "lists/add", "lists/remove", "log"].contains(&change) || order.is_some();
    if !takes_query && !request.query.is_empty() {
        return Answer::refusal(400, "this takes no query\n");
    }
    let order = match order.transpose() {
        Ok(order) => order,
        Err((status, sentence)) => return Answer::refusal(status, &(sentence + "\n")),
    };
    let of_order = order.map(|order| Change::Service(order.subject, order.service));
    // What has pairs reads them by itself.
    let text = match query::decoded(if change == "log" { request.query } else { "" }) {
        Ok(text) => text,
        Err(sentence) => return Answer::refusal(400, &format!("{sentence}\n")),
    };
    if let Some(kept) = of_order.or_else(|| kept_change(change, &text)) {
        let keep = |doors: &Arc<Doors>| doors.journal.make(watch, levels, &kept);
        if let Err(sentence) = doors.map_or_else(|| kept.make(watch, levels), keep) {
            let status = if order.is_some() { 409 } else { 400 };
            return Answer::refusal(status, &format!("{sentence}\n"));
        }
    }
    // What is closed gets no new connection any more.
    if let Some(Err(reason)) = order.map(|order| order.close(watch)) {
        return Answer::refusal(409, &format!("it is out of service, but not all is closed: {reason}\n"));
    }
    let line = format!("changed by ctl: {change} {}", request.query);
    match change {
        "capture" => return crate::capture::answer(request.query, watch),
        "connections/end" => return told(connections::end(request.query, watch)),
        "lists/add" | "lists/remove" => {
            return match lists::read(change == "lists/add", request.query) {
                Ok((name, to)) => by_owner(line, doors, move |doors| (doors.list)(&name, to)),
                Err(sentence) => Answer::refusal(400, &(sentence + "\n")),
            };
        }
        "records/reopen" => watch.records().reopen(),
        "reset" => match doors {
            Some(doors) => doors.journal.reset(watch, levels),
            None => return Answer::refusal(405, "nothing is kept here\n"),
        },
        "reload" => return by_owner(line, doors, |doors| (doors.reload)()),
        _ => {}
    }
    log::info!("{line}");
    Answer::text("ok\n")
}

/// Has the thread that owns the engine do something, which may take it seconds; `line` is for the log when it is done.
fn by_owner(
    line: String,
    doors: Option<&Arc<Doors>>,
    order: impl FnOnce(&Doors) -> Result<(), String> + Send + 'static,
) -> Answer {
    let Some(doors) = doors else {
        return Answer::refusal(405, "the configuration stays as it is\n");
    };
    beside(doors, move |doors| match order(doors) {
        Ok(()) => {
            log::info!("{line}");
            Answer::text("ok\n")
        }
        Err(reason) => Answer::refusal(409, &(reason + "\n")),
    })
}

/// Answers while others are served, if not too many such answers are under way.
fn beside(doors: &Arc<Doors>, answer: impl FnOnce(&Doors) -> Answer + Send + 'static) -> Answer {
    // One is the server's.
    if Arc::strong_count(doors) > BESIDE {
        return Answer::refusal(503, "busy: ask again\n");
    }
    let doors = Arc::clone(doors);
    Answer::beside(move || answer(&doors))
}

/// What a reload would change and what `ctl` has changed, for those who may change it: the file and its lists are read for it, and its
/// errors quote them.
pub(super) fn diff(peer: Peer, watch: &Watch, doors: &Arc<Doors>) -> Answer {
    let watch = watch.clone();
    refusal(peer).unwrap_or_else(|| beside(doors, move |doors| difference(&watch, doors)))
}

/// A line for each.
fn difference(watch: &Watch, doors: &Doors) -> Answer {
    let config = watch.config();
    match config.reload(&doors.file) {
        Ok((new, _)) => match steering::check(&new) {
            Ok(()) => Answer::text(config.lines_of_difference(&new) + &doors.journal.lines()),
            Err(error) => Answer::refusal(409, &format!("{error}\n")),
        },
        Err(error) => Answer::refusal(409, &format!("{error}\n")),
    }
}

fn refusal(peer: Peer) -> Option<Answer> {
    let may = may_change(peer, rustix::process::geteuid().as_raw());
    (!may).then(|| Answer::refusal(403, "for root and the engine's user, over a Unix socket\n"))
}

/// Group and mode of the socket say who may read. `own` is the user that the engine runs as.
fn may_change(peer: Peer, own: u32) -> bool {
    match peer {
        Peer::Local { uid } => uid == 0 || uid == own,
        Peer::Network => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_engines_user_may_change_something_and_nobody_over_tcp() {
        assert!(may_change(Peer::Local { uid: 0 }, 990) && may_change(Peer::Local { uid: 990 }, 990));
        assert!(!may_change(Peer::Local { uid: 991 }, 990) && !may_change(Peer::Network, 0));
    }
}
