//! netfcts
