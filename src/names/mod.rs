//! Servers by name: DNS is asked for their addresses again and again, by one thread over the kernel's network (`docs/configuration.md`).
//!
//! ```text
//! questions of the configuration ─► Resolver ─► messages ─► sockets of one thread, and back
//!                                      └─► answers ─► main thread ─► another version of the configuration
//! ```
//!
//! [`message`] makes questions and reads answers. [`Resolver`] decides what is asked when, and what becomes of an answer: pure, with the
//! time as an argument. [`Resolving`] is the thread with the sockets, [`store`] the file that keeps answers for the next start. Which
//! servers an answer makes is decided by [`Config::with_answers`](crate::config::Config::with_answers).
//!
//! A failure never removes a server: an answer without an address removes it, and one without any address is a failure.

pub mod message;
mod resolver;
pub mod store;
mod thread;

pub use message::{Ask, Heard};
pub use resolver::{Random, Resolver};
pub use thread::{FirstAnswers, Resolving, name_servers};
