//! What holds for all wire formats, whatever the bytes: properties over random packets, and agreement with `etherparse`,
//! a parser that no one here wrote.

mod arbitrary;
mod checksums;
mod oracle;
mod properties;
