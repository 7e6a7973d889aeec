//! Readings and state as a screen.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use serde_json::Value;

use super::readings::Readings;
use super::state::State;
use super::tables::{self, DROPS, Order, Severity, TABLES, duration, short};

/// Between two columns: titles have room for the mark of the order behind them, too.
const GAP: u16 = 1;

/// What the keys do, in the last line.
pub(super) const KEYS: [(&str, &str); 6] = [
    ("Tab", "table"),
    ("↑↓", "move"),
    ("F6", "sort"),
    ("r", "reverse"),
    ("/", "filter"),
    ("q", "quit"),
];

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, readings: &Readings) {
    let wrong = what_is_wrong(readings, frame.area().height / 5);
    let parts = [
        Constraint::Length(2),
        Constraint::Length(wrong.len() as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, below, tabs, rows, keys] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(summary(readings)), head);
    frame.render_widget(Paragraph::new(wrong), below);
    frame.render_widget(Paragraph::new(names_of_tables(state)), tabs);
    table(frame, rows, state, readings);
    frame.render_widget(Paragraph::new(last_line(state)), keys);
}

/// Two lines: who it is, and what it does altogether.
fn summary(readings: &Readings) -> Vec<Line<'static>> {
    let now = readings.now();
    let stat = &now["stat"];
    let version = stat["version"].as_str().unwrap_or("?").to_owned();
    let uptime = stat["uptime_ms"]
        .as_f64()
        .map_or_else(String::new, |ms| duration(ms / 1e3));
    let ready = match now["not_ready"].as_str() {
        Some(_) => Span::from("not ready").red().bold(),
        None => Span::from("ready").green(),
    };
    let who = Line::from(vec![
        Span::from(format!("proxyengine {version}")).bold(),
        Span::from(format!("  up {uptime}  ")),
        ready,
    ]);
    let sum = |part: &'static str, field: &'static str| {
        move |status: &Value| -> f64 {
            let rows = status[part].as_array().into_iter().flatten();
            // Of drops, those that are no loss are none here.
            rows.filter(|row| row["loss"] != Value::Bool(false))
                .filter_map(|row| row[field].as_f64())
                .sum()
        }
    };
    let rate = |part, field| readings.rate_of(sum(part, field)).map_or_else(|| "–".to_owned(), short);
    let open = stat["connections_open"].as_f64().map_or_else(|| "–".to_owned(), short);
    let totals = [
        ("open", open),
        ("new/s", rate("listeners", "connections")),
        ("calls/s", rate("servers", "calls")),
        ("packets/s in", rate("cores", "received")),
        ("out", rate("cores", "sent")),
        ("drops/s", rate("drops", "count")),
    ];
    let spans = totals.into_iter().flat_map(|(name, value)| {
        [
            Span::from(format!("{name} ")).dim(),
            Span::from(value).bold(),
            Span::from("  "),
        ]
    });
    vec![who, spans.collect()]
}

/// A line for each thing, at most so many and one more.
fn what_is_wrong(readings: &Readings, most: u16) -> Vec<Line<'static>> {
    let sentences = readings.rows("wrong").map(|row| {
        let is_critical = row["severity"] == "critical";
        let severity = if is_critical {
            Severity::Critical
        } else {
            Severity::Warning
        };
        (severity, row["sentence"].as_str().unwrap_or("?").to_owned())
    });
    let dropping = TABLES[DROPS].rows(readings, "", Order::default()).into_iter();
    let dropping = dropping.filter(|row| row.severity > Severity::Well).map(|row| {
        let sentence = format!("dropping {}/s: {}", row.cells[1].text, row.cells[0].text);
        (row.severity, sentence)
    });
    let all: Vec<_> = sentences.chain(dropping).collect();
    if all.is_empty() {
        return vec![Line::from("nothing is wrong").green()];
    }
    let most = usize::from(most.max(1));
    let line = |(severity, sentence): &(Severity, String)| Line::styled(format!("! {sentence}"), style(*severity));
    let mut lines: Vec<Line<'_>> = all.iter().take(most).map(line).collect();
    if all.len() > most {
        lines.push(Line::from(format!("  and {} more", all.len() - most)).dim());
    }
    lines
}

fn style(severity: Severity) -> Style {
    match severity {
        Severity::Well => Style::new(),
        Severity::Warning => Style::new().fg(Color::Yellow),
        Severity::Critical => Style::new().fg(Color::Red),
    }
}

fn names_of_tables(state: &State) -> Line<'static> {
    let (shown, _) = state.table();
    let name = |(number, table): (usize, &tables::Table)| {
        let name = Span::from(format!(" {} ", table.part));
        if number == shown {
            name.bold().reversed()
        } else {
            name.dim()
        }
    };
    TABLES.iter().enumerate().map(name).collect()
}

fn table(frame: &mut Frame<'_>, area: Rect, state: &mut State, readings: &Readings) {
    let (_, table) = state.table();
    let order = state.view().order;
    let rows = table.rows(readings, &state.word, order);
    let heading = |number: usize| {
        let mark = match order {
            Order {
                column: Some(column),
                is_reversed,
            } if column == number => {
                if is_reversed {
                    "▲"
                } else {
                    "▼"
                }
            }
            _ => "",
        };
        format!("{}{mark}", table.columns[number].title)
    };
    let width = |number: usize| {
        let cells = rows.iter().map(|row| row.cells[number].text.chars().count());
        // The mark of the order has its place before it is there.
        let of_title = table.columns[number].title.chars().count() + 1;
        cells.chain([of_title]).max().unwrap_or(of_title) as u16
    };
    let mut left = area.width;
    let mut widths: Vec<u16> = Vec::new();
    for width in (0..table.columns.len()).map(width) {
        if width > left && !widths.is_empty() {
            break;
        }
        left = left.saturating_sub(width + GAP);
        widths.push(width);
    }
    let aligned = |number: usize, text: String| {
        let is_number = table.columns[number].is_number();
        let side = if is_number { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(text).alignment(side))
    };
    let head = (0..widths.len()).map(|number| aligned(number, heading(number)));
    let lines = rows.iter().map(|row| {
        let cells = row.cells.iter().take(widths.len()).enumerate();
        let cells = cells.map(|(number, cell)| aligned(number, cell.text.clone()));
        Row::new(cells).style(style(row.severity))
    });
    let shown = Table::new(lines, widths.iter().map(|width| Constraint::Length(*width)))
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)))
        .column_spacing(GAP)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    state.page = area.height.saturating_sub(2);
    frame.render_stateful_widget(shown, area, &mut state.view().place);
}

fn last_line(state: &State) -> Line<'static> {
    if state.is_typing {
        return Line::from(vec![
            Span::from("filter: ").bold(),
            Span::from(state.word.clone()),
            Span::from(" ").reversed(),
            Span::from("  Enter keeps it, Esc clears it").dim(),
        ]);
    }
    let mut spans: Vec<Span<'_>> = KEYS
        .iter()
        .flat_map(|(key, does)| [Span::from(*key).reversed(), Span::from(format!(" {does}  "))])
        .collect();
    if !state.word.is_empty() {
        spans.push(Span::from(format!("only \"{}\"", state.word)).yellow());
    }
    spans.into()
}
