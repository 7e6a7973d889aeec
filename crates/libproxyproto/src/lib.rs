//! libproxyproto
