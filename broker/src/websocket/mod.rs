//! MQTT over WebSocket (RFC 6455, and MQTT's section 6), for clients that cannot open a TCP connection of their own:
//! those in a browser, or behind a proxy.
//!
//! - `frame`: frames, without IO
//! - `upgrade`: the HTTP request at the beginning, without IO
//! - `stream`: both over any stream
//! - for tests: `fuzzing`, properties for any bytes
//!
//! The certificate identifies the client, as everywhere; there are neither cookies nor passwords. `Origin` is
//! therefore not checked: programs do not send it, and a list of pages would have to be configured. But a browser shows its
//! certificate to whatever page asks for this port, so a page elsewhere may act for the person who visits it, within
//! the permissions of that identity: operators and observers read, and no more. To rule that out, give browsers no
//! certificate of the fleet.

mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod stream;
mod upgrade;

pub(crate) use self::stream::{WebSocketError, WebSocketStream};
