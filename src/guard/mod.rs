//! Who a client is by its address: lists of prefixes, and the one table of them that all cores ask.
//!
//! ```text
//!   files ─► ListContent ┐
//!   `ctl list add` ──────┼─► ClientTable, by the main thread ─► each core's selector, with a generation (`src/engine/generation.rs`)
//!   rules' prefixes ─────┘
//! ```
//!
//! A table is never changed: another takes its place. What rules make of its answers is for `src/selectors/rules.rs`.

mod hits;
mod leaf;
mod list_file;
mod ranges;
mod table;
mod trie;

pub use hits::{Hits, ListHits};
pub use list_file::{CLASS, ListContent, ListError, MOST_CLASSES, MOST_ENTRIES, NO_CLASS, as_ipv4, is_class, prefix};
pub use ranges::TooManySets;
pub use table::{Asked, ClientTable, Entry, Lists, Source, TableError};
pub use trie::TooLarge;
