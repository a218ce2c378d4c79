// Drives MQTT.js for the tests: a request per line of standard input, an answer per line of standard output (JSON).

"use strict";

const fs = require("fs");
const readline = require("readline");
const mqtt = require("mqtt");

let client;
let five = false;
const messages = [];
const waiting = [];
const ends = [];
const endWaiting = [];

function put(items, waiters, item) {
    const waiter = waiters.shift();
    if (waiter) waiter(item);
    else items.push(item);
}

function toProperties(asked) {
    if (!five || !asked) return undefined;
    const found = {};
    if (asked.content_type != null) found.contentType = asked.content_type;
    if (asked.response_topic != null) found.responseTopic = asked.response_topic;
    if (asked.correlation != null) found.correlationData = Buffer.from(asked.correlation);
    if (asked.expiry_s != null) found.messageExpiryInterval = asked.expiry_s;
    if (asked.alias != null) found.topicAlias = asked.alias;
    if (asked.user && asked.user.length) {
        found.userProperties = {};
        for (const [name, value] of asked.user) found.userProperties[name] = value;
    }
    return found;
}

function fromProperties(given) {
    if (!given) return {};
    const user = [];
    for (const [name, values] of Object.entries(given.userProperties || {})) {
        for (const value of [].concat(values)) user.push([name, value]);
    }
    return {
        content_type: given.contentType,
        response_topic: given.responseTopic,
        correlation: given.correlationData && given.correlationData.toString(),
        expiry_s: given.messageExpiryInterval,
        alias: given.topicAlias,
        user,
        subscription_ids: given.subscriptionIdentifier == null ? [] : [].concat(given.subscriptionIdentifier),
    };
}

const verbs = {
    connect(asked) {
        five = asked.version === 5;
        const will = asked.will && {
            topic: asked.will.topic,
            payload: asked.will.payload,
            qos: asked.will.qos,
            retain: asked.will.retain,
            properties: toProperties(asked.will.properties),
        };
        client = mqtt.connect({
            protocol: "mqtts",
            host: "localhost",
            port: asked.port,
            ca: fs.readFileSync(asked.authority),
            cert: fs.readFileSync(asked.certificate),
            key: fs.readFileSync(asked.key),
            protocolVersion: asked.version,
            clientId: asked.client_id,
            clean: asked.clean,
            reconnectPeriod: 0,
            will: will || undefined,
            properties: five
                ? { sessionExpiryInterval: asked.session_expiry_s || 0, topicAliasMaximum: asked.alias_max || 0 }
                : undefined,
        });
        client.on("message", (topic, payload, packet) => {
            put(messages, waiting, {
                topic,
                payload: payload.toString(),
                qos: packet.qos,
                retain: packet.retain,
                properties: fromProperties(packet.properties),
            });
        });
        let named = null;
        client.on("disconnect", (packet) => {
            named = packet.reasonCode;
        });
        client.on("close", () => put(ends, endWaiting, { reason: named }));
        return new Promise((resolve, reject) => {
            client.once("connect", (ack) =>
                resolve({ session_present: ack.sessionPresent, code: five ? ack.reasonCode : ack.returnCode }),
            );
            client.on("error", (error) => {
                if (typeof error.code === "number") resolve({ session_present: false, code: error.code });
                else reject(error);
            });
        });
    },

    subscribe(asked) {
        const options = {
            qos: asked.qos,
            nl: asked.no_local,
            rap: asked.as_published,
            rh: asked.handling,
            properties: five && asked.id ? { subscriptionIdentifier: asked.id } : undefined,
        };
        return new Promise((resolve, reject) => {
            client.subscribe(asked.filter, options, (error, granted, packet) => {
                if (packet) resolve({ reasons: packet.granted });
                else reject(error || new Error(`no SUBACK: ${JSON.stringify(granted)}`));
            });
        });
    },

    unsubscribe(asked) {
        return new Promise((resolve, reject) => {
            client.unsubscribe(asked.filter, (error, packet) => {
                if (error) reject(error);
                else resolve({ reasons: (packet && packet.granted) || [] });
            });
        });
    },

    publish(asked) {
        const options = { qos: asked.qos, retain: asked.retain, properties: toProperties(asked.properties) };
        return new Promise((resolve, reject) => {
            client.publish(asked.topic, asked.payload, options, (error, packet) => {
                if (error && typeof error.code === "number") resolve({ reason: error.code });
                else if (error) reject(error);
                else resolve({ reason: (packet && packet.reasonCode) || 0 });
            });
        });
    },

    message(asked) {
        if (messages.length) return messages.shift();
        return new Promise((resolve) => {
            const timer = setTimeout(() => {
                waiting.splice(waiting.indexOf(take), 1);
                resolve({ none: true });
            }, asked.within_s * 1000);
            const take = (message) => {
                clearTimeout(timer);
                resolve(message);
            };
            waiting.push(take);
        });
    },

    disconnect() {
        return new Promise((resolve) => client.end(false, {}, () => resolve({})));
    },

    end() {
        if (ends.length) return ends.shift();
        return new Promise((resolve) => endWaiting.push(resolve));
    },
};

async function main() {
    for await (const line of readline.createInterface({ input: process.stdin })) {
        const asked = JSON.parse(line);
        let answer;
        try {
            answer = await verbs[asked.do](asked);
        } catch (error) {
            answer = { error: String(error) };
        }
        process.stdout.write(JSON.stringify(answer) + "\n");
    }
    process.exit(0);
}

main();
