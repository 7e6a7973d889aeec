//! Parts of the core against what they must be by definition: the translation against its inverse, the cookie against its
//! computed rate, tables and rings against simple models over long random sequences. The timer wheel and the port pool
//! have theirs in `netfcts`.

mod cookie;
mod held;
mod ring;
mod table;
mod translation;
