//! libproxyproto-connect
