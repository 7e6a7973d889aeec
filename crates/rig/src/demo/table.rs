//! The demo's table: client → payload → server → bytes → states.

use super::requests::Outcome;
use crate::servers;

const HEADINGS: [&str; 6] = [
    "client",
    "first payload",
    "server",
    "bytes to server/client",
    "client's states",
    "server's states",
];

/// Prints a row for each request.
pub(super) fn print(outcomes: &[Outcome]) {
    let mut rows: Vec<[String; 6]> = vec![HEADINGS.map(str::to_owned)];
    rows.extend(outcomes.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    println!();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
    println!();
}

fn row(outcome: &Outcome) -> [String; 6] {
    let client = outcome
        .client
        .map_or_else(|| "?".to_owned(), |client| client.to_string());
    let server = outcome.answered().map_or_else(|| "none".to_owned(), servers::name_of);
    let payload = outcome.request().payload();
    let Some(record) = &outcome.record else {
        let none = || "no session record".to_owned();
        return [client, payload, server, none(), none(), none()];
    };
    let bytes = format!("{}/{}", record.bytes_to_server, record.bytes_to_client);
    [
        client,
        payload,
        server,
        bytes,
        record.client_states.join(" "),
        record.server_states.join(" "),
    ]
}
