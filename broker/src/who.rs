//! Who a certificate is for.

/// A certificate's serial number, as its big-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Serial(Box<[u8]>);

impl From<Vec<u8>> for Serial {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}
