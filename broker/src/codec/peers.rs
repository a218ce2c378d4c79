//! Compares this codec with rumqttc's, in both directions.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use proptest::{collection::vec, option, prelude::*};
use rumqttc::{
    mqttbytes::v4,
    v5::mqttbytes::{QoS as Theirs, v5},
};

use super::*;
use crate::message::QoS;

const MAX: u32 = 1_000_000;

fn qos(qos: QoS) -> Theirs {
    if qos == QoS::AtMostOnce { Theirs::AtMostOnce } else { Theirs::AtLeastOnce }
}

fn any_qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce)]
}

fn text() -> impl Strategy<Value = String> {
    "[a-zé/ ]{1,20}"
}

/// Some are so large that their lengths take three bytes.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 0..300), 1 => (16_000_usize..70_000).prop_map(|length| vec![7; length])]
}

fn users() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((text(), text()), 0..4)
}

fn read_v5(out: &[u8]) -> v5::Packet {
    let mut out = BytesMut::from(out);
    let packet = v5::Packet::read(&mut out, Some(MAX)).unwrap();
    assert!(out.is_empty());
    packet
}

fn encode(version: ProtocolVersion, answer: &ServerPacket<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    version.encode(answer, &mut out);
    out
}

prop_compose! {
    fn publish_properties()(
        format in option::of(0_u8..2),
        expiry in option::of(any::<u32>()),
        alias in option::of(1_u16..),
        response in option::of(text()),
        correlation in option::of(vec(any::<u8>(), 0..200)),
        user_properties in users(),
        content_type in option::of(text()),
    ) -> v5::PublishProperties {
        v5::PublishProperties {
            payload_format_indicator: format,
            message_expiry_interval: expiry,
            topic_alias: alias,
            response_topic: response,
            correlation_data: correlation.map(Bytes::from),
            user_properties,
            subscription_identifiers: Vec::new(),
            content_type,
        }
    }
}

prop_compose! {
    fn publish()(
        topic in text(),
        payload in payload(),
        at in any_qos(),
        retain: bool,
        dup: bool,
        id in 1_u16..,
        properties in option::of(publish_properties()),
    ) -> v5::Publish {
        let pkid = if at == QoS::AtMostOnce { 0 } else { id };
        v5::Publish {
            dup: dup && pkid != 0,
            qos: qos(at),
            retain,
            topic: topic.into(),
            pkid,
            payload: payload.into(),
            properties,
        }
    }
}

proptest! {
    /// From a publisher through our decoder and encoder to a subscriber: only what must change is changed.
    #[test]
    fn a_message_passes_through(sent in publish(), left in option::of(any::<u32>()), number in option::of(1_u32..268_435_456), dup: bool) {
        let mut out = BytesMut::new();
        sent.write(&mut out).unwrap();
        let (frame, used) = frame(&out, MAX as usize).unwrap().unwrap();
        prop_assert_eq!(used, out.len());
        let Ok(ClientPacket::Publish { packet_id, publication }) = ProtocolVersion::V5.decode(&frame) else { panic!("{sent:?}") };
        prop_assert_eq!(packet_id.unwrap_or_default(), sent.pkid);
        let said = sent.properties.clone().unwrap_or_default();
        prop_assert_eq!((publication.expiry_s, publication.alias), (said.message_expiry_interval, said.topic_alias));
        let delivery = Delivery {
            packet_id,
            dup,
            retain: publication.retain,
            topic: publication.topic,
            payload: publication.payload,
            properties: &publication.properties,
            expiry_s: left,
            subscription_id: number,
        };

        let out = encode(ProtocolVersion::V5, &ServerPacket::Publish(delivery));
        prop_assert_eq!(out.len(), ProtocolVersion::V5.publish_len(&delivery));
        let v5::Packet::Publish(got) = read_v5(&out) else { panic!("{sent:?}") };
        let properties = v5::PublishProperties {
            message_expiry_interval: left,
            topic_alias: None,
            subscription_identifiers: number.map(|number| number as usize).into_iter().collect(),
            ..said
        };
        prop_assert_eq!(got.properties.clone().unwrap_or_default(), properties);
        let dup = dup && sent.pkid != 0;
        prop_assert_eq!(v5::Publish { properties: None, ..got }, v5::Publish { properties: None, dup, ..sent.clone() });

        let mut out = encode(ProtocolVersion::V311, &ServerPacket::Publish(delivery));
        prop_assert_eq!(out.len(), ProtocolVersion::V311.publish_len(&delivery));
        let v4::Packet::Publish(got) = v4::Packet::read(&mut out, MAX as usize).unwrap() else { panic!("{sent:?}") };
        prop_assert_eq!((got.topic.as_bytes(), got.payload), (&sent.topic[..], sent.payload));
        prop_assert_eq!((got.dup, got.retain, got.pkid, got.qos as u8), (dup, sent.retain, sent.pkid, sent.qos as u8));
    }

    #[test]
    fn a_message_of_3_1_1_is_read(topic in text(), payload in payload(), at in any_qos(), retain: bool, id in 1_u16..) {
        let pkid = if at == QoS::AtMostOnce { 0 } else { id };
        let theirs = if at == QoS::AtMostOnce { rumqttc::QoS::AtMostOnce } else { rumqttc::QoS::AtLeastOnce };
        let sent = v4::Publish { retain, pkid, ..v4::Publish::new(&topic, theirs, payload.clone()) };
        let mut out = BytesMut::new();
        sent.write(&mut out).unwrap();
        let (frame, _) = frame(&out, MAX as usize).unwrap().unwrap();
        let publication =
            Publication { topic: &topic, payload: &payload, qos: at, retain, properties: Cow::Borrowed(&[]), expiry_s: None, alias: None };
        let packet_id = (pkid != 0).then_some(pkid);
        prop_assert_eq!(ProtocolVersion::V311.decode(&frame), Ok(ClientPacket::Publish { packet_id, publication }));
    }
}

prop_compose! {
    fn connect_properties()(
        session_expiry_interval in option::of(any::<u32>()),
        receive_maximum in option::of(1_u16..),
        max_packet_size in option::of(1_u32..),
        topic_alias_max in option::of(any::<u16>()),
        request_response_info in option::of(0_u8..2),
        request_problem_info in option::of(0_u8..2),
        user_properties in users(),
        authentication_method in option::of(text()),
        data in option::of(vec(any::<u8>(), 0..20)),
    ) -> v5::ConnectProperties {
        let authentication_data = if authentication_method.is_some() { data.map(Bytes::from) } else { None };
        v5::ConnectProperties {
            session_expiry_interval,
            receive_maximum,
            max_packet_size,
            topic_alias_max,
            request_response_info,
            request_problem_info,
            user_properties,
            authentication_method,
            authentication_data,
        }
    }
}

prop_compose! {
    fn will()(
        topic in text(),
        payload in vec(any::<u8>(), 0..200),
        at in any_qos(),
        retain: bool,
        properties in publish_properties(),
        delay_interval in option::of(any::<u32>()),
    ) -> v5::LastWill {
        let properties = v5::LastWillProperties {
            delay_interval,
            payload_format_indicator: properties.payload_format_indicator,
            message_expiry_interval: properties.message_expiry_interval,
            content_type: properties.content_type,
            response_topic: properties.response_topic,
            correlation_data: properties.correlation_data,
            user_properties: properties.user_properties,
        };
        v5::LastWill::new(topic, payload, qos(at), retain, Some(properties))
    }
}

proptest! {
    #[test]
    fn a_connect_is_read(
        client_id in text(),
        keep_alive: u16,
        clean_start: bool,
        properties in option::of(connect_properties()),
        will in option::of(will()),
        login in option::of((text(), text())),
    ) {
        let connect = v5::Connect { keep_alive, client_id, clean_start, properties };
        let login = login.map(|(user, password)| v5::Login::new(user, password));
        let mut out = BytesMut::new();
        connect.write(&will, &login, &mut out).unwrap();
        let (frame, used) = frame(&out, MAX as usize).unwrap().unwrap();
        prop_assert_eq!(used, out.len());
        let read = super::connect(&frame).unwrap();
        let said = connect.properties.unwrap_or_default();
        prop_assert_eq!((read.version, read.client_id, read.clean), (ProtocolVersion::V5, &connect.client_id[..], clean_start));
        prop_assert_eq!(read.keep_alive_s, keep_alive);
        prop_assert_eq!(read.session_expiry_s, said.session_expiry_interval.unwrap_or(0));
        prop_assert_eq!(read.receive_max, said.receive_maximum.unwrap_or(65_535));
        prop_assert_eq!(read.packet_max_bytes, said.max_packet_size);
        prop_assert_eq!(read.request_problem, said.request_problem_info != Some(0));
        prop_assert_eq!(read.extended_auth, said.authentication_method.is_some());
        prop_assert_eq!(read.user.map(str::as_bytes), login.as_ref().map(|login| login.username.as_bytes()));
        prop_assert_eq!(read.password, login.as_ref().map(|login| login.password.as_bytes()));
        prop_assert_eq!(read.will.is_some(), will.is_some());
        if let (Some(read), Some(will)) = (read.will, will) {
            let said = will.properties.unwrap();
            prop_assert_eq!(read.delay_s, said.delay_interval.unwrap_or(0));
            let publication = read.publication;
            prop_assert_eq!((publication.topic.as_bytes(), publication.payload), (&will.topic[..], &will.message[..]));
            prop_assert_eq!((qos(publication.qos), publication.retain), (will.qos, will.retain));
            prop_assert_eq!(publication.expiry_s, said.message_expiry_interval);
            // What is passed on is the rest, in its order.
            let rest = v5::LastWillProperties { delay_interval: None, message_expiry_interval: None, ..said };
            let mut expected = BytesMut::new();
            rest.write(&mut expected).unwrap();
            prop_assert!(expected.ends_with(&publication.properties));
            prop_assert_eq!(writer::length_len(publication.properties.len()) + publication.properties.len(), expected.len());
        }
    }

    #[test]
    fn subscribes_are_read(
        pkid in 1_u16..,
        filters in vec((text(), 0_u8..3, any::<bool>(), any::<bool>(), 0_u8..3), 1..5),
        id in option::of(1_usize..268_435_456),
        user_properties in users(),
    ) {
        let theirs = filters.iter().map(|(path, at, nolocal, preserve_retain, handling)| v5::Filter {
            path: path.clone(),
            qos: [Theirs::AtMostOnce, Theirs::AtLeastOnce, Theirs::ExactlyOnce][usize::from(*at)],
            nolocal: *nolocal,
            preserve_retain: *preserve_retain,
            retain_forward_rule: match handling {
                0 => v5::RetainForwardRule::OnEverySubscribe,
                1 => v5::RetainForwardRule::OnNewSubscribe,
                _ => v5::RetainForwardRule::Never,
            },
        });
        let properties = Some(v5::SubscribeProperties { id, user_properties: user_properties.clone() });
        let mut out = BytesMut::new();
        v5::Subscribe { pkid, filters: theirs.collect(), properties }.write(&mut out).unwrap();
        let (found, _) = frame(&out, MAX as usize).unwrap().unwrap();
        let ours = filters.iter().map(|(path, at, no_local, as_published, handling)| {
            let qos = if *at == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
            let handling = [RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never][usize::from(*handling)];
            (&path[..], SubscribeOptions { qos, no_local: *no_local, as_published: *as_published, handling })
        });
        let expected = ClientPacket::Subscribe { packet_id: pkid, id: id.map(|id| id as u32), filters: ours.collect() };
        prop_assert_eq!(ProtocolVersion::V5.decode(&found), Ok(expected));

        let names: Vec<String> = filters.iter().map(|filter| filter.0.clone()).collect();
        let properties = Some(v5::UnsubscribeProperties { user_properties });
        let mut out = BytesMut::new();
        v5::Unsubscribe { pkid, filters: names.clone(), properties }.write(&mut out).unwrap();
        let (found, _) = frame(&out, MAX as usize).unwrap().unwrap();
        let filters = names.iter().map(String::as_str).collect();
        prop_assert_eq!(ProtocolVersion::V5.decode(&found), Ok(ClientPacket::Unsubscribe { packet_id: pkid, filters }));
    }

    #[test]
    fn connack_is_read_by_rumqttc(
        session_present: bool,
        client_id in option::of(text()),
        server_keep_alive_s in option::of(any::<u16>()),
        session_expiry_s in option::of(any::<u32>()),
        receive_max in 1_u16..,
        packet_max_bytes in 1_u32..,
        alias_max: u16,
    ) {
        let ack = ConnAck {
            reason: Reason::Success,
            session_present,
            assigned_client_id: client_id.as_deref(),
            server_keep_alive_s,
            session_expiry_s,
            receive_max,
            packet_max_bytes,
            alias_max,
        };
        let v5::Packet::ConnAck(read) = read_v5(&encode(ProtocolVersion::V5, &ServerPacket::ConnAck(ack))) else { panic!() };
        prop_assert_eq!((read.code, read.session_present), (v5::ConnectReturnCode::Success, session_present));
        let properties = v5::ConnAckProperties {
            session_expiry_interval: session_expiry_s,
            receive_max: Some(receive_max),
            max_qos: Some(1),
            retain_available: Some(1),
            max_packet_size: Some(packet_max_bytes),
            assigned_client_identifier: client_id,
            topic_alias_max: Some(alias_max),
            reason_string: None,
            user_properties: Vec::new(),
            wildcard_subscription_available: Some(1),
            subscription_identifiers_available: Some(1),
            shared_subscription_available: Some(0),
            server_keep_alive: server_keep_alive_s,
            response_information: None,
            server_reference: None,
            authentication_method: None,
            authentication_data: None,
        };
        prop_assert_eq!(read.properties, Some(properties));
    }
}

#[test]
fn acknowledgements_are_read_by_rumqttc() {
    use v5::{DisconnectReasonCode, PubAckReason, SubscribeReasonCode, UnsubAckReason};
    let (packet_id, pkid) = (0x0102, 0x0102);
    for (reason, theirs) in
        [(Reason::Success, PubAckReason::Success), (Reason::NotAuthorized, PubAckReason::NotAuthorized)]
    {
        let read = read_v5(&encode(ProtocolVersion::V5, &ServerPacket::PubAck { packet_id, reason }));
        assert_eq!(read, v5::Packet::PubAck(v5::PubAck { pkid, reason: theirs, properties: None }));
    }
    let reasons = &[Reason::GrantedQoS1, Reason::Success, Reason::SharedSubscriptionsNotSupported];
    let v5::Packet::SubAck(read) = read_v5(&encode(ProtocolVersion::V5, &ServerPacket::SubAck { packet_id, reasons }))
    else {
        panic!()
    };
    let codes = vec![
        SubscribeReasonCode::Success(Theirs::AtLeastOnce),
        SubscribeReasonCode::Success(Theirs::AtMostOnce),
        SubscribeReasonCode::SharedSubscriptionsNotSupported,
    ];
    assert_eq!((read.pkid, read.return_codes), (pkid, codes));
    let reasons = &[Reason::NoSubscriptionExisted, Reason::Success];
    let read = read_v5(&encode(ProtocolVersion::V5, &ServerPacket::UnsubAck { packet_id, reasons }));
    let v5::Packet::UnsubAck(read) = read else { panic!() };
    assert_eq!((read.pkid, read.reasons), (pkid, vec![UnsubAckReason::NoSubscriptionExisted, UnsubAckReason::Success]));
    assert_eq!(read_v5(&encode(ProtocolVersion::V5, &ServerPacket::Pong)), v5::Packet::PingResp(v5::PingResp));
    for (reason, theirs) in [
        (Reason::SessionTakenOver, DisconnectReasonCode::SessionTakenOver),
        (Reason::QoSNotSupported, DisconnectReasonCode::QoSNotSupported),
        (Reason::ServerShuttingDown, DisconnectReasonCode::ServerShuttingDown),
    ] {
        let v5::Packet::Disconnect(read) = read_v5(&encode(ProtocolVersion::V5, &ServerPacket::Disconnect(reason)))
        else {
            panic!()
        };
        assert_eq!(read.reason_code, theirs);
    }
    let refused = encode(ProtocolVersion::V5, &ServerPacket::ConnAck(ConnAck::refused(Reason::ServerBusy)));
    let v5::Packet::ConnAck(read) = read_v5(&refused) else { panic!() };
    assert_eq!((read.code, read.session_present), (v5::ConnectReturnCode::ServerBusy, false));
}

/// Every reason in every packet is a code that another codec knows.
#[test]
fn reason_codes_are_read_by_rumqttc() {
    for (reason, ..) in reason::tests::ALL {
        let reasons = &[reason];
        let (packet_id, is_failure) = (1, reason.is_failure());
        if is_failure {
            read_v5(&encode(ProtocolVersion::V5, &ServerPacket::ConnAck(ConnAck::refused(reason))));
        }
        for answer in [
            ServerPacket::PubAck { packet_id, reason },
            ServerPacket::SubAck { packet_id, reasons },
            ServerPacket::UnsubAck { packet_id, reasons },
            ServerPacket::Disconnect(reason),
        ] {
            let out = encode(ProtocolVersion::V5, &answer);
            read_v5(&out);
            assert!(!is_failure || out.iter().any(|byte| *byte >= 0x80), "{answer:?}");
        }
    }
}
