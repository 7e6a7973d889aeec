//! What the keys have chosen, and what a key does to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::tables::{Order, TABLES, Table};

/// Which table is shown, how, and where in it one is.
#[derive(Default)]
pub(super) struct State {
    table: usize,
    /// Of each table.
    views: [View; TABLES.len()],
    /// Only rows with this word are shown, in all tables.
    pub(super) word: String,
    /// Keys belong to the word.
    pub(super) is_typing: bool,
    /// Rows that the table has on the screen, as drawn last.
    pub(super) page: u16,
}

/// How one table is looked at.
#[derive(Default)]
pub(super) struct View {
    pub(super) order: Order,
    pub(super) place: TableState,
}

/// What comes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Quit,
}

impl State {
    /// The table that is shown, and its number.
    pub(super) fn table(&self) -> (usize, &'static Table) {
        let number = self.table % TABLES.len();
        (number, &TABLES[number])
    }

    pub(super) fn view(&mut self) -> &mut View {
        let (number, _) = self.table();
        &mut self.views[number]
    }

    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Then {
        let is_control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control_c || key.code == KeyCode::F(10) {
            return Then::Quit;
        }
        if self.is_typing {
            self.type_word(key.code);
            return Then::GoOn;
        }
        let page = self.page.max(1);
        match key.code {
            KeyCode::Char('q') => return Then::Quit,
            KeyCode::Tab => self.table = (self.table + 1) % TABLES.len(),
            KeyCode::BackTab => self.table = (self.table + TABLES.len() - 1) % TABLES.len(),
            KeyCode::Down | KeyCode::Char('j') => self.view().place.scroll_down_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.view().place.scroll_up_by(1),
            KeyCode::PageDown => self.view().place.scroll_down_by(page),
            KeyCode::PageUp => self.view().place.scroll_up_by(page),
            KeyCode::Home => self.view().place.select_first(),
            KeyCode::End => self.view().place.select_last(),
            KeyCode::F(6) | KeyCode::Char('s') | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Left => {
                let (_, table) = self.table();
                self.sort_by_next(table.columns.len());
            }
            KeyCode::Char('r') => self.view().order.is_reversed ^= true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.word.clear(),
            _ => {}
        }
        Then::GoOn
    }

    fn type_word(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(char) => self.word.push(char),
            KeyCode::Backspace => _ = self.word.pop(),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.word.clear();
                self.is_typing = false;
            }
            _ => {}
        }
    }

    /// By the column so many behind; what is wrong first stands between the last and the first.
    fn sort_by_next(&mut self, step: usize) {
        let (_, table) = self.table();
        let places = table.columns.len() + 1;
        let order = &mut self.view().order;
        let now = order.column.map_or(0, |column| column + 1);
        *order = Order {
            column: ((now + step) % places).checked_sub(1),
            is_reversed: false,
        };
    }
}
