//! proxyengine
