"""Drives paho-mqtt for the tests: a request per line of standard input, an answer per line of standard output (JSON)."""

import json
import queue
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

# Far more than anything takes on a busy machine.
PATIENCE_S = 60

NAMES = {
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "expiry_s": "MessageExpiryInterval",
    "alias": "TopicAlias",
}


class Driver:
    def __init__(self):
        self.messages = queue.Queue()
        self.answers = queue.Queue()
        self.ends = queue.Queue()
        self.client = None
        self.five = False

    def properties(self, packet, asked):
        if not self.five or not asked:
            return None
        found = Properties(packet)
        for ours, theirs in NAMES.items():
            if asked.get(ours) is not None:
                setattr(found, theirs, asked[ours])
        if asked.get("correlation") is not None:
            found.CorrelationData = asked["correlation"].encode()
        for pair in asked.get("user", []):
            found.UserProperty = tuple(pair)
        return found

    def connect(self, asked):
        self.five = asked["version"] == 5
        more = {} if self.five else {"clean_session": asked["clean"]}
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=asked["client_id"],
            protocol=mqtt.MQTTv5 if self.five else mqtt.MQTTv311,
            reconnect_on_failure=False,
            **more,
        )
        client.tls_set(asked["authority"], asked["certificate"], asked["key"])
        client.on_connect = lambda _c, _u, flags, reason, _p: self.answers.put((flags.session_present, reason.value))
        client.on_message = lambda _c, _u, message: self.messages.put(message)
        client.on_publish = lambda _c, _u, mid, reason, _p: self.answers.put((mid, reason.value))
        client.on_subscribe = lambda _c, _u, _m, reasons, _p: self.answers.put([reason.value for reason in reasons])
        client.on_unsubscribe = lambda _c, _u, _m, reasons, _p: self.answers.put([reason.value for reason in reasons])
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self.ends.put(reason.value)
        will = asked.get("will")
        if will:
            client.will_set(
                will["topic"],
                will["payload"],
                will["qos"],
                will["retain"],
                properties=self.properties(PacketTypes.WILLMESSAGE, will.get("properties")),
            )
        more = {}
        if self.five:
            properties = Properties(PacketTypes.CONNECT)
            if asked.get("session_expiry_s"):
                properties.SessionExpiryInterval = asked["session_expiry_s"]
            more = {"clean_start": asked["clean"], "properties": properties}
        self.client = client
        client.connect("localhost", asked["port"], keepalive=60, **more)
        client.loop_start()
        present, code = self.answers.get(timeout=PATIENCE_S)
        return {"session_present": present, "code": code}

    def subscribe(self, asked):
        if self.five:
            options = SubscribeOptions(
                qos=asked["qos"],
                noLocal=asked["no_local"],
                retainAsPublished=asked["as_published"],
                retainHandling=asked["handling"],
            )
            properties = None
            if asked.get("id"):
                properties = Properties(PacketTypes.SUBSCRIBE)
                properties.SubscriptionIdentifier = asked["id"]
            self.client.subscribe(asked["filter"], options=options, properties=properties)
        else:
            self.client.subscribe(asked["filter"], asked["qos"])
        return {"reasons": self.answers.get(timeout=PATIENCE_S)}

    def unsubscribe(self, asked):
        self.client.unsubscribe(asked["filter"])
        return {"reasons": self.answers.get(timeout=PATIENCE_S)}

    def publish(self, asked):
        self.client.publish(
            asked["topic"],
            asked["payload"],
            asked["qos"],
            asked["retain"],
            properties=self.properties(PacketTypes.PUBLISH, asked.get("properties")),
        )
        _, reason = self.answers.get(timeout=PATIENCE_S)
        return {"reason": reason}

    def message(self, asked):
        try:
            message = self.messages.get(timeout=asked["within_s"])
        except queue.Empty:
            return {"none": True}
        found = {}
        given = message.properties
        if given is not None:
            for ours, theirs in NAMES.items():
                if hasattr(given, theirs):
                    found[ours] = getattr(given, theirs)
            if hasattr(given, "CorrelationData"):
                found["correlation"] = given.CorrelationData.decode()
            found["user"] = getattr(given, "UserProperty", [])
            found["subscription_ids"] = getattr(given, "SubscriptionIdentifier", [])
        return {
            "topic": message.topic,
            "payload": message.payload.decode(),
            "qos": message.qos,
            "retain": bool(message.retain),
            "properties": found,
        }

    def disconnect(self, _asked):
        self.client.disconnect()
        self.ends.get(timeout=PATIENCE_S)
        self.client.loop_stop()
        return {}

    def end(self, _asked):
        return {"reason": self.ends.get(timeout=PATIENCE_S)}


def main():
    driver = Driver()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(driver, asked["do"])(asked)
        except Exception as error:  # told to the test, which knows what it expected
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


main()
