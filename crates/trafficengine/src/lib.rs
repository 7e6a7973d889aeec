//! trafficengine
