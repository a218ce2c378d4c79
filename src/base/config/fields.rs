//! The order in which the fields of a configuration are declared, which its JSON Schema lacks.

use std::{cell::Cell, iter};

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, Visitor,
        value::{Error, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

/// The fields of the struct at a path in `T`, in the order of their declaration; empty if there is no struct. Any name
/// selects an element of a list, or of a map whose keys the user chooses.
pub(super) fn declared<T: DeserializeOwned>(path: &[String]) -> Vec<&'static str> {
    let found = Cell::new(&[][..]);
    // This always fails: the probe holds no values, it only records which fields are asked for.
    let _ = T::deserialize(Probe { path, found: &found });
    found.get().to_vec()
}

/// A document that contains nothing but one path.
#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [String],
    found: &'a Cell<&'static [&'static str]>,
}

impl<'a> Probe<'a> {
    fn deeper(self) -> Result<(&'a str, Self), Error> {
        let (name, path) = self.path.split_first().ok_or_else(|| Error::custom("the end of the path"))?;
        Ok((name, Self { path, ..self }))
    }
}

impl<'de> IntoDeserializer<'de, Error> for Probe<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.path.is_empty() {
            self.found.set(fields);
        }
        self.deserialize_map(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(MapDeserializer::new(iter::once(self.deeper()?)))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(iter::once(self.deeper()?.1)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple tuple_struct
        enum identifier ignored_any
    }
}
