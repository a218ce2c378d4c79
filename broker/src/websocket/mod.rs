//! MQTT over WebSocket (RFC 6455, and MQTT's section 6), for clients that cannot open a TCP connection of their own:
//! those in a browser, or behind a proxy.
//!
//! - `frame`: frames, without IO
//! - `upgrade`: the HTTP request at the beginning, without IO
//! - `stream`: both over any stream
//! - for tests: `fuzzing`, what must hold for any bytes
//!
//! Who a client is, its certificate says, here as everywhere; there are neither cookies nor passwords. `Origin` is
//! therefore not looked at: programs do not send it, and a list of pages would have to be kept. A browser shows its
//! certificate to whatever page asks for this port, though, so a page elsewhere may act for the person who visits it, within
//! what that identity may do: operators and observers read, and no more. Whoever wants to rule that out gives browsers no
//! certificate of the fleet.

mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod stream;
mod upgrade;

pub(crate) use self::stream::{WebSocket, WebSocketError};
