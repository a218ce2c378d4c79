//! A route of the API: address, method, handler and description.

use axum::routing::MethodRouter;

use super::super::state::Console;
use super::openapi::{BodyShape, Parameter};

/// One route.
pub(super) struct Route {
    pub(super) method: Method,
    /// The path below `/api`.
    pub(super) path: &'static str,
    pub(super) about: &'static str,
    /// Whether it is public: no token is needed.
    pub(super) open: bool,
    /// The query parameters.
    pub(super) query: &'static [Parameter],
    pub(super) request: BodyShape,
    pub(super) response: BodyShape,
    pub(super) handler: MethodRouter<Console>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Delete => "delete",
        }
    }
}

impl Route {
    pub(super) fn new(method: Method, path: &'static str, about: &'static str, handler: MethodRouter<Console>) -> Self {
        let (request, response) = (BodyShape::Nothing, BodyShape::Nothing);
        Self { method, path, about, open: false, query: &[], request, response, handler }
    }

    pub(super) fn open(mut self) -> Self {
        self.open = true;
        self
    }

    pub(super) fn query(mut self, query: &'static [Parameter]) -> Self {
        self.query = query;
        self
    }

    pub(super) fn takes(mut self, request: BodyShape) -> Self {
        self.request = request;
        self
    }

    pub(super) fn gives(mut self, response: BodyShape) -> Self {
        self.response = response;
        self
    }
}
